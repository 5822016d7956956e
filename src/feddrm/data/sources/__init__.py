"""Reading a user's own samples: arrays, images, tables."""
