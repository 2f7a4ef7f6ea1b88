"""inference_latency: which stage of an inference server delays requests."""
