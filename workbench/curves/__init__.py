"""What a reward curve is, how sure one can be of it, and when two agree."""
