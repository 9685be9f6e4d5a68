"""scikit-learn: its estimators and pipelines in operators that have rules."""
