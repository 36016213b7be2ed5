"""Instruments that read rollouts, estimators and results, and change nothing."""
