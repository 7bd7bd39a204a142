"""The row kernels for PyTorch: names and signatures as in torch.nn.functional and torch.nn."""

from onelaunch.torch.cross_entropy import cross_entropy
from onelaunch.torch.linear import linear_cross_entropy
from onelaunch.torch.modules import CrossEntropyLoss, LinearCrossEntropyLoss, LogSoftmax, Softmax
from onelaunch.torch.patch import patch, unpatch
from onelaunch.torch.reducing import CrossEntropyOutput
from onelaunch.torch.softmax import log_softmax, logsumexp, softmax

__all__ = [
    "CrossEntropyLoss",
    "CrossEntropyOutput",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "Softmax",
    "cross_entropy",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "patch",
    "softmax",
    "unpatch",
]
