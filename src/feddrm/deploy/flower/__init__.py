"""The only package that imports Flower: its apps, its processes, and the daemons that run them."""
