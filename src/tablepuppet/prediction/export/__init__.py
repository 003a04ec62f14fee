"""Models for other tools: SQL that an owner runs, ONNX, and an estimator of scikit-learn for pooled rows."""
