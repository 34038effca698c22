"""What notebooks and studies start from: recipes and how they are trained, PPO, a vLLM server."""
