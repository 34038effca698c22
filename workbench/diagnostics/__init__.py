"""What looks at a training and changes nothing."""
