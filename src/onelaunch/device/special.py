"""Error functions and other special functions of one argument."""

import triton
import triton.language as tl

from onelaunch.device.exponential import log1p
from onelaunch.device.floating import sqrt


@triton.jit
def erf(x):
    """Error function."""
    return tl.erf(x)


@triton.jit
def erf_inv(x):
    """Inverse error function: M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2011)."""
    w = log1p(x * x * -1.0) * -1.0
    if x.dtype == tl.float64:
        root = sqrt(w)
        p = tl.where(w < 16.0, erf_inv_tail(root - 3.25), erf_inv_far(root - 5.0))
        p = tl.where(w < 6.25, erf_inv_centre(w - 3.125), p)
    else:
        near = w < 5.0
        w = tl.where(near, w - 2.5, sqrt(w) - 3.0)
        p = tl.where(near, 2.81022636e-08, -0.000200214257 + w * 0.0)
        p = tl.where(near, 3.43273939e-07, 0.000100950558 + w * 0.0) + p * w
        p = tl.where(near, -3.5233877e-06, 0.00134934322 + w * 0.0) + p * w
        p = tl.where(near, -4.39150654e-06, -0.00367342844 + w * 0.0) + p * w
        p = tl.where(near, 0.00021858087, 0.00573950773 + w * 0.0) + p * w
        p = tl.where(near, -0.00125372503, -0.0076224613 + w * 0.0) + p * w
        p = tl.where(near, -0.00417768164, 0.00943887047 + w * 0.0) + p * w
        p = tl.where(near, 0.246640727, 1.00167406 + w * 0.0) + p * w
        p = tl.where(near, 1.50140941, 2.83297682 + w * 0.0) + p * w
    return tl.where(tl.abs(x) == 1.0, x * float("inf"), p * x)


@triton.jit
def erf_inv_centre(w):
    """Giles' double-precision polynomial for w < 6.25, in w - 3.125."""
    p = w * -3.6444120640178196996e-21 - 1.685059138182016589e-19
    p = p * w + 1.2858480715256400167e-18
    p = p * w + 1.115787767802518096e-17
    p = p * w - 1.333171662854620906e-16
    p = p * w + 2.0972767875968561637e-17
    p = p * w + 6.6376381343583238325e-15
    p = p * w - 4.0545662729752068639e-14
    p = p * w - 8.1519341976054721522e-14
    p = p * w + 2.6335093153082322977e-12
    p = p * w - 1.2975133253453532498e-11
    p = p * w - 5.4154120542946279317e-11
    p = p * w + 1.051212273321532285e-09
    p = p * w - 4.1126339803469836976e-09
    p = p * w - 2.9070369957882005086e-08
    p = p * w + 4.2347877827932403518e-07
    p = p * w - 1.3654692000834678645e-06
    p = p * w - 1.3882523362786468719e-05
    p = p * w + 0.0001867342080340571352
    p = p * w - 0.00074070253416626697512
    p = p * w - 0.0060336708714301490533
    p = p * w + 0.24015818242558961693
    return p * w + 1.6536545626831027356


@triton.jit
def erf_inv_tail(w):
    """Giles' double-precision polynomial for 6.25 <= w < 16, in sqrt(w) - 3.25."""
    p = w * 2.2137376921775787049e-09 + 9.0756561938885390979e-08
    p = p * w - 2.7517406297064545428e-07
    p = p * w + 1.8239629214389227755e-08
    p = p * w + 1.5027403968909827627e-06
    p = p * w - 4.013867526981545969e-06
    p = p * w + 2.9234449089955446044e-06
    p = p * w + 1.2475304481671778723e-05
    p = p * w - 4.7318229009055733981e-05
    p = p * w + 6.8284851459573175448e-05
    p = p * w + 2.4031110387097893999e-05
    p = p * w - 0.0003550375203628474796
    p = p * w + 0.00095328937973738049703
    p = p * w - 0.0016882755560235047313
    p = p * w + 0.0024914420961078508066
    p = p * w - 0.0037512085075692412107
    p = p * w + 0.005370914553590063617
    p = p * w + 1.0052589676941592334
    return p * w + 3.0838856104922207635


@triton.jit
def erf_inv_far(w):
    """Giles' double-precision polynomial for w >= 16, in sqrt(w) - 5."""
    p = w * -2.7109920616438573243e-11 - 2.5556418169965252055e-10
    p = p * w + 1.5076572693500548083e-09
    p = p * w - 3.7894654401267369937e-09
    p = p * w + 7.6157012080783393804e-09
    p = p * w - 1.4960026627149240478e-08
    p = p * w + 2.9147953450901080826e-08
    p = p * w - 6.7711997758452339498e-08
    p = p * w + 2.2900482228026654717e-07
    p = p * w - 9.9298272942317002539e-07
    p = p * w + 4.5260625972231537039e-06
    p = p * w - 1.9681778105531670567e-05
    p = p * w + 7.5995277030017761139e-05
    p = p * w - 0.00021503011930044477347
    p = p * w - 0.00013871931833623122026
    p = p * w + 1.0103004648645343977
    return p * w + 4.8499064014085844221
