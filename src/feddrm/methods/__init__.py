"""Federated methods, one frozen dataclass and one file each; :mod:`feddrm.methods.method` defines the interface."""

from feddrm.methods.closed_form import ClosedFormMethod
from feddrm.methods.confree import ConFREE
from feddrm.methods.ditto import Ditto
from feddrm.methods.fed3r import Fed3R
from feddrm.methods.fedala import FedALA
from feddrm.methods.fedas import FedAS
from feddrm.methods.fedavg import FedAvg, FedAvgFT, Local
from feddrm.methods.fedbabu import FedBABU
from feddrm.methods.feddrm import FedDRM, FedDRMFT
from feddrm.methods.fedlda import FedLDA
from feddrm.methods.fedpac import FedPAC
from feddrm.methods.fedprox import FedProxFT
from feddrm.methods.fedrep import FedRep
from feddrm.methods.fedsam import FedSAMFT
from feddrm.methods.method import Forward, Method, Phase, Sgd, Slots, Stage, Statistics, Tensors

__all__ = [
    "ClosedFormMethod",
    "ConFREE",
    "Ditto",
    "Fed3R",
    "FedALA",
    "FedAS",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedDRM",
    "FedDRMFT",
    "FedLDA",
    "FedPAC",
    "FedProxFT",
    "FedRep",
    "FedSAMFT",
    "Forward",
    "Local",
    "Method",
    "Phase",
    "Sgd",
    "Slots",
    "Stage",
    "Statistics",
    "Tensors",
]
