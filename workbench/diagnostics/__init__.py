"""Reports and callbacks that measure a training and change nothing."""
