"""The texts of the files that ``feddrm deploy init`` writes: pages, comments, start scripts, units, the Flower app."""

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
them here. On every machine, install the wheel that is in the folder (`{wheel}`,
sha256 `{checksum}`):

    python3 -m venv venv && venv/bin/pip install './{wheel}[deploy]'

Then run `./start.sh` in the folder, or install its systemd unit. Sites must be able to reach port {port} of the server;
sites open no port. The server's certificate is valid for the names that were given to `feddrm deploy init`.

Later changes (`feddrm deploy add-site`, `remove-site`, `renew`, each with `--help`) need the folder `server/` only;
`renew` also needs `authority/`.
"""

SITE_PAGE = """# {name}: what your IT department needs to know

1. **What runs.** One program, `feddrm deploy site`, which `./start.sh` starts. It connects to `{server}`
   (outgoing, one TCP port, TLS) and opens no port to the outside. It runs only the code that you installed:
   it never executes code from the server, and it refuses messages that the server has not signed.
2. **Install** the wheel in this folder. You need Python 3.11 or newer; the packages that it builds on come from your
   package index.

       echo "{checksum}  {wheel}" | sha256sum --check
       python3 -m venv venv && venv/bin/pip install './{wheel}[deploy]'

3. **Make your key**, if `node.key` is not in this folder: `venv/bin/python -m feddrm deploy keygen .` The private key
   stays here. Send `node.pub` to the coordinator, who adds it with `feddrm deploy add-site`. Compare the fingerprint
   that the command prints with the coordinator's, by telephone.
4. **Name your data** in `site.yaml` (the file has examples). The data stay where they are. They must not change
   while a run lasts: after a restart with changed data, the site takes no further part until the old data are back.
   `venv/bin/python -m feddrm deploy check .` reads them, and checks folder, disk, versions, key, certificate, the way
   to the server (also through a proxy) and the clock; every line has its remedy. `./start.sh` calls it first.
5. **Start** `./start.sh`, best as a service (`feddrm-site.service`, see below). You may stop or kill it at any time,
   and the connection may fail: the federation continues without the site until it is back.
   `venv/bin/python -m feddrm deploy status .` says whether the site is connected, what the server asked last, and
   whom it waits for, and what your samples should be looked at for. The logs are `feddrm.log`, `flower.log` and
   `events.jsonl` (what was asked and answered, in figures); each file begins anew at 5 MiB, and three older ones are
   kept.
6. **What leaves the site:** the number of training samples, their form and the class names; with `schema: auto`
   also sums of a table's columns and the different texts in them; the model parameters that the method shares; in
   every round the training loss and two counts (test samples, and how many of them were right); at the end, counts
   and sums of the answers to its test samples, unless `site.yaml` says `share: {{metrics: false}}`; for the router,
   sums over samples; of a method from a plugin, whether it counts places without a sample (yes or no). Features of
   single samples leave it only with `share: {{features: true}}`. Raw data, labels and the private part do not leave it.
   With `privacy:` in `site.yaml`, the parameters leave with noise added, whatever the server asks for, and losses,
   counts and sums do not leave at all. With `floors:` no sum over fewer samples leaves, whatever the server asks for.
   In a run with secure aggregation they leave masked: the server learns sums over at least three sites;
   `require_secure_aggregation: true` demands that. Compare the fingerprints of the other sites' keys in `keys/` with
   these sites by telephone (docs/deploy_privacy.md).
7. **What stays:** `runs/` and `clients/{name}/` in this folder hold the private part. Back them up, and also
   `uploads.json`, which counts what differential privacy has cost.
   Only their owner can read the private part, `node.key` and `secret`. Do not copy `node.key` and `secret`.
8. **Answering queries.** At the end of a run the server sends `config.yaml`, `data.json` and `router/`, the same
   for all sites. With them `feddrm serve-client clients/{name}` answers queries. That program does open a port.

## As a service

The unit expects this folder at `/opt/feddrm/site`, with the environment `venv` in it, and a user `feddrm`:

    sudo useradd --system --home-dir /opt/feddrm feddrm
    sudo cp --recursive . /opt/feddrm/site && sudo chown --recursive feddrm: /opt/feddrm/site
    sudo cp feddrm-site.service /etc/systemd/system/ && sudo systemctl enable --now feddrm-site

Make the environment at its last place, because it cannot be moved. Set `MemoryMax` in the unit to what you can spare.
"""

UNIT = """[Unit]
Description=feddrm {role} {name}
After=network-online.target
Wants=network-online.target

[Service]
User=feddrm
Group=feddrm
WorkingDirectory=/opt/feddrm/{role}
Environment=FEDDRM_PYTHON=/opt/feddrm/{role}/venv/bin/python
ExecStart=/opt/feddrm/{role}/start.sh
Restart=always
RestartSec=5
TimeoutStopSec=30
UMask=0077
MemoryMax=8G
TasksMax=512
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=true
ProtectControlGroups=true
RestrictSUIDSGID=true
ReadWritePaths=/opt/feddrm/{role}

[Install]
WantedBy=multi-user.target
"""

SITE_COMMENT = """# What only this site decides. 'data' names its samples, in one of these ways:
#   data: {folder: data, size: 64}         images in class sub-folders
#   data: {csv: visits.csv, label: outcome}   a table with a header
#   data: {csv: visits.csv, label: outcome, schema: auto, drop: [pid]}   its columns' sums and texts leave the site
#     with 'categories: [code]' beside them for columns of codes that are no measurement, or of more than 30 texts
#   data: {npz: samples.npz}               arrays x and y, and subject, if several samples are of one patient
#     Of tables it is a column, 'subject: patient', of a folder found in file names: 'subject: "p([0-9]+)_"'
#   data: {dataset: digits, clients: 3, client: 0}   a share of a known dataset, for trying out
# 'privacy' is the least that this site demands, whatever the server says: the largest norm of a change, the noise
# in units of clip, and optionally the largest epsilon of all its runs together:
#   privacy: {clip: 1.0, noise: 3.0, budget: 50}
# 'share' says what else may leave: sums of its answers to test samples (default: true; without them the run has no
# metrics but accuracy), and features of held-out samples, which all other sites get (default: false):
#   share: {metrics: false, features: true}
# 'floors' are the fewest samples of a class and of a sum; a message that would need a sum over fewer is refused.
# Samples of one subject count once:
#   floors: {per_class: 5, per_sum: 20}
# 'require_secure_aggregation' refuses runs in which the server sees what this site sends, and not only sums over sites;
# 'fewest_sites' is how many sites such a sum must have (3 or more). keys/ has the other sites' public keys:
#   require_secure_aggregation: true
#   fewest_sites: 4
"""

START = """#!/bin/sh
# Starts this {role} and stays; stop it with Ctrl-C or a signal. No environment needs to be activated.
# The Python is that of FEDDRM_PYTHON, else venv/bin/python in this folder, else the one that made this file.
cd "$(dirname "$0")" || exit 1
here="$(pwd)"
python="${{FEDDRM_PYTHON:-}}"
if [ -z "$python" ]; then
    python="$here/venv/bin/python"
    [ -x "$python" ] || python={python}
fi
if ! [ -x "$python" ]; then
    echo "start.sh: there is no Python at $python: make one here with 'python3 -m venv venv &&" \\
        "venv/bin/pip install ./{wheel}[deploy]', or set FEDDRM_PYTHON to one that has feddrm" >&2
    exit 1
fi
echo "feddrm {role}: $python -m feddrm deploy {role} $here"
echo "feddrm {role}: its logs are $here/feddrm.log and $here/flower.log"
if [ "${{FEDDRM_CHECK:-1}}" != 0 ] && ! "$python" -m feddrm deploy check "$here"; then
    echo "start.sh: correct the problems above; FEDDRM_CHECK=0 starts without this check" >&2
    exit 1
fi
exec "$python" -m feddrm deploy {role} "$here"
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
