"""What a model concludes, held against the findings it cites: `ground` is the way in."""
