"""Boosters of XGBoost, LightGBM and CatBoost: read from their own dumps, and written as ONNX in one way."""
