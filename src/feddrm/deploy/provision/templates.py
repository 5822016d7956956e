"""The pages and scripts that ``feddrm deploy init`` writes."""

PROJECT_PAGE = """# A federation of {sites}

| folder | goes to | holds |
|---|---|---|
| `server/` | the server's machine ({host}) | its certificate, keys, `federation.yaml`, later the run and the router |
| `sites/<name>/` | that site, and nobody else | its private key, `site.yaml`, later its private part |
| `authority/` | a safe | the key that signs server certificates; no machine needs it |

To try everything on one machine:

    feddrm deploy up .        # starts the server and every site
    feddrm deploy run .       # trains, fits the router, shows how far it is
    feddrm deploy status .
    feddrm deploy down .

On separate machines: copy `server/` to the server and each `sites/<name>/` to its site by a safe way,
then delete them here. Everywhere `pip install 'feddrm[deploy]'` in the same version, then `./start.sh`
in the folder. Only port {port} of the server must be reachable; sites open no port.
The server's certificate is valid for the names that were given to `feddrm deploy init`.
"""

SITE_PAGE = """# {name}: what your IT department needs to know

1. **What runs.** One program, `feddrm deploy site`, started by `./start.sh`. It connects to `{server}`
   (outgoing, one TCP port, TLS) and opens no port to the outside. It runs only the code you installed:
   code sent by the server is never executed, and letters that the server has not signed are refused.
2. **Install.** Python 3.11 or newer: `python3 -m venv venv && venv/bin/pip install 'feddrm[deploy]'`,
   then put `venv/bin` on the PATH.
3. **Name your data** in `site.yaml` (examples are in it). They stay where they are, and must stay as they are
   while a run lasts: a site that finds others after a restart takes no further part until they are back.
4. **Start** `./start.sh`, best as a service that is started again whenever it ends (below). It may be
   stopped, killed or lose its connection at any time: the site is left out until it is back.
5. **What leaves the site:** the number of training samples, their form and class names; model
   parameters that the method shares; two counts per round (test samples, and how many of them were
   right) and the training loss; for the router sums over samples. Not raw data, not labels, not the private part.
   With `privacy:` in `site.yaml` only blurred parameters leave, whatever the server asks for (docs/deploy.md).
6. **What stays:** `runs/` and `clients/{name}/` in this folder hold the private part. Back them up,
   and `uploads.json`, which counts what differential privacy has cost.
   The private part, `node.key` and `secret` are readable by their owner only; the latter two must not be copied.
7. **Answering queries.** When a run ends, `config.yaml`, `data.json` and `router/` come from the server, the same for
   all sites. With them `feddrm serve-client clients/{name}` answers queries; that program does open a port.

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

SITE_START = """#!/bin/sh
# Starts this site and stays; stop it with Ctrl-C or a signal.
cd "$(dirname "$0")" && exec feddrm deploy site .
"""

SERVER_START = """#!/bin/sh
# Starts the server and stays; stop it with Ctrl-C or a signal.
cd "$(dirname "$0")" && exec feddrm deploy server .
"""
