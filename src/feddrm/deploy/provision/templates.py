"""The texts of the files that ``feddrm deploy init`` writes: pages, comments, start scripts, the Flower app."""

PROJECT_PAGE = """# A federation of {sites}

| folder | belongs to | contains |
|---|---|---|
| `server/` | the server's machine ({host}) | its certificate, keys, `federation.yaml`; later the run and the router |
| `sites/<name>/` | that site, and nobody else | its private key, `site.yaml`; later its private part |
| `authority/` | a safe | the key that signs server certificates; no machine needs it |

To try everything on one machine:

    feddrm deploy up .        # starts the server and every site
    feddrm deploy run .       # trains, fits the router, shows the progress
    feddrm deploy status .
    feddrm deploy down .

On separate machines: copy `server/` to the server and each `sites/<name>/` to its site in a safe way, then delete
them here. On every machine, install the same version with `pip install 'feddrm[deploy]'`, then run `./start.sh` in
the folder. Sites must be able to reach port {port} of the server; sites open no port.
The server's certificate is valid for the names that were given to `feddrm deploy init`.
"""

SITE_PAGE = """# {name}: what your IT department needs to know

1. **What runs.** One program, `feddrm deploy site`, which `./start.sh` starts. It connects to `{server}`
   (outgoing, one TCP port, TLS) and opens no port to the outside. It runs only the code that you installed:
   it never executes code from the server, and it refuses messages that the server has not signed.
2. **Install.** You need Python 3.11 or newer. Run `python3 -m venv venv && venv/bin/pip install 'feddrm[deploy]'`,
   then put `venv/bin` on the PATH.
3. **Name your data** in `site.yaml` (the file has examples). The data stay where they are. They must not change
   while a run lasts: after a restart with changed data, the site takes no further part until the old data are back.
4. **Start** `./start.sh`, best as a service that is restarted whenever it ends (see below). You may stop or kill
   it at any time, and the connection may fail: the federation continues without the site until it is back.
5. **What leaves the site:** the number of training samples, their form and the class names; the model
   parameters that the method shares; in every round the training loss and two counts (test samples, and how many
   of them were right); for the router, sums over samples. Raw data, labels and the private part do not leave it.
   With `privacy:` in `site.yaml`, the parameters leave with noise added, whatever the server asks for, and losses,
   counts and sums do not leave at all (docs/deploy.md).
6. **What stays:** `runs/` and `clients/{name}/` in this folder hold the private part. Back them up, and also
   `uploads.json`, which counts what differential privacy has cost.
   Only their owner can read the private part, `node.key` and `secret`. Do not copy `node.key` and `secret`.
7. **Answering queries.** At the end of a run the server sends `config.yaml`, `data.json` and `router/`, the same
   for all sites. With them `feddrm serve-client clients/{name}` answers queries. That program does open a port.

    [Unit]
    Description=feddrm site {name}
    After=network-online.target
    [Service]
    WorkingDirectory=/opt/feddrm/{name}
    ExecStart=/opt/feddrm/{name}/start.sh
    Restart=always
    RestartSec=5
    [Install]
    WantedBy=multi-user.target
"""

SITE_COMMENT = """# What only this site decides. 'data' names its samples, in one of these ways:
#   data: {folder: data, size: 64}         images in class sub-folders
#   data: {csv: visits.csv, label: outcome}   a table with a header
#   data: {npz: samples.npz}               arrays x and y
#   data: {dataset: digits, clients: 3, client: 0}   a share of a known dataset, for trying out
# 'privacy' is the least that this site demands, whatever the server says: the largest norm of a change, the noise
# in units of clip, and optionally the largest epsilon of all its runs together:
#   privacy: {clip: 1.0, noise: 3.0, budget: 50}
"""

SITE_START = """#!/bin/sh
# Starts this site and stays; stop it with Ctrl-C or a signal.
cd "$(dirname "$0")" && exec feddrm deploy site .
"""

SERVER_START = """#!/bin/sh
# Starts the server and stays; stop it with Ctrl-C or a signal.
cd "$(dirname "$0")" && exec feddrm deploy server .
"""

FLOWER_APP = """[project]
name = "feddrm-app"
version = "1.0.0"
description = "Names the parts of feddrm that Flower runs; both ends run their own installed copy"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "feddrm"

[tool.flwr.app.components]
serverapp = "feddrm.deploy.flower.apps:server_app"
clientapp = "feddrm.deploy.flower.apps:client_app"
"""
