"""Federated data: datasets, their division among clients, covariate shift, and batch streams."""

from feddrm.data.batches import Batch, Draw, Participant, batch, draw, draw_for, generator_for
from feddrm.data.client import Client, Split
from feddrm.data.crop import RandomResizedCrop, resized_crop
from feddrm.data.datasets.base import Dataset, load
from feddrm.data.datasets.cifar import Cifar10, Cifar20, Cifar100
from feddrm.data.datasets.digits import Digits
from feddrm.data.datasets.heart import Heart
from feddrm.data.datasets.retina import Retina
from feddrm.data.datasets.tcga_brca import TcgaBrca
from feddrm.data.datasets.user import Csv, Folders, Leaf, Npz
from feddrm.data.federation import DEPLOYED, Federation
from feddrm.data.partition import partition
from feddrm.data.pool import Pool
from feddrm.data.query_views import QueryViews
from feddrm.data.shift import colour_shifts
from feddrm.data.view import View

__all__ = [
    "DEPLOYED",
    "Batch",
    "Cifar10",
    "Cifar20",
    "Cifar100",
    "Client",
    "Csv",
    "Dataset",
    "Digits",
    "Draw",
    "Federation",
    "Folders",
    "Heart",
    "Leaf",
    "Npz",
    "Participant",
    "Pool",
    "QueryViews",
    "RandomResizedCrop",
    "Retina",
    "Split",
    "TcgaBrca",
    "View",
    "batch",
    "colour_shifts",
    "draw",
    "draw_for",
    "generator_for",
    "load",
    "partition",
    "resized_crop",
]
