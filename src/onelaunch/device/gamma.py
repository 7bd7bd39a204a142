"""Gamma, digamma and their kin; fits of our own (bench/fit.py). f32 is computed in f64 and rounded once."""

import triton
import triton.language as tl

from onelaunch.device.floating import round_even


@triton.jit
def lgamma(x):
    """log |Gamma(x)|; infinite at 0 and the negative integers."""
    y = x.to(tl.float64)
    low = y < 0.5
    result = lgamma_positive(tl.where(low, 1.0 - y, y))
    return tl.where(low, lgamma_reflected(y, result), result).to(x.dtype)


@triton.jit
def lgamma_reflected(x, mirror):
    """lgamma(x) for x < 1/2 from ``mirror`` = lgamma(1 - x)."""
    size = tl.abs(x)
    near = lgamma_two(size) - tl.log(size * (1.0 + size))
    apart = x - round_even(x)
    wave = tl.abs(sin_turns(apart))
    far = 1.1447298858494002 - tl.log(wave) - mirror
    result = tl.where((x > 0.0) | (x == 0.0), near, far)
    return tl.where(size == float("inf"), float("inf"), tl.where(apart == 0.0, float("inf"), result))


@triton.jit
def sin_turns(x):
    """sin(pi x) for |x| <= 1/2 (f64)."""
    z = x * x
    p = z * -2.22837121606969689e-8 + 7.94853903737232084e-7
    p = p * z - 0.0000219152503018513743
    p = p * z + 0.000466302787459327273
    p = p * z - 0.00737043094370213585
    p = p * z + 0.0821458866109935574
    p = p * z - 0.599264529320786899
    p = p * z + 2.55016403987734534
    p = p * z - 5.16771278004997003
    p = p * z + 3.14159265358979324
    return p * x


@triton.jit
def cos_turns(x):
    """cos(pi x) for |x| <= 1/2 (f64), small only absolutely near 1/2."""
    z = x * x
    p = z * -1.34352129509532007e-7 + 4.30072417273484693e-6
    p = p * z - 0.000104637416817521383
    p = p * z + 0.00192957418728123483
    p = p * z - 0.025806891376592964
    p = p * z + 0.23533063035799502
    p = p * z - 1.33526276885455496
    p = p * z + 4.05871212641676754
    p = p * z - 4.9348022005446793
    p = p * z + 1.0
    return p


@triton.jit
def lgamma_two(z):
    """lgamma(2 + z) for |z| <= 1/2."""
    p = z * 6.37904750761977372e-8 - 1.34128197585172855e-7
    p = p * z + 2.03048067516152279e-7
    p = p * z - 4.30355876035996121e-7
    p = p * z + 9.57866333411475771e-7
    p = p * z - 2.0449201467015115e-6
    p = p * z + 4.37437491691513072e-6
    p = p * z - 9.43845871624281117e-6
    p = p * z + 0.0000205072674160577876
    p = p * z - 0.0000449263511038333311
    p = p * z + 0.0000994575090988939157
    p = p * z - 0.000223154750745203673
    p = p * z + 0.000509669524885309606
    p = p * z - 0.00119275391200102263
    p = p * z + 0.00289051033073873699
    p = p * z - 0.00738555102866815368
    p = p * z + 0.020580808427784569
    p = p * z - 0.0673523010531981394
    p = p * z + 0.322467033424113218
    p = p * z + 0.422784335098467139
    return p * z


@triton.jit
def stirling(x):
    """lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2 for x >= 8."""
    w = 1.0 / (x * x)
    p = w * -0.0208553692146075394 + 0.00620811025803577655
    p = p * w - 0.00191496528961363295
    p = p * w + 0.000841732519353673964
    p = p * w - 0.000595238023381374497
    p = p * w + 0.000793650793511570956
    p = p * w - 0.00277777777777767453
    p = p * w + 0.0833333333333333333
    return p / x


@triton.jit
def lgamma_positive(x):
    """lgamma(x) for x >= 1/2: by recurrence to the neighbourhood of 2, by Stirling's series from 8 on."""
    far = x >= 8.0
    y = tl.where(far, 2.0, x)
    product = tl.where(y < 1.5, y, 1.0)
    y = tl.where(y < 1.5, y + 1.0, y)
    for _ in tl.static_range(6):
        more = y > 2.5
        y = tl.where(more, y - 1.0, y)
        product = tl.where(more, product * y, product)
    grown = tl.log(tl.where(far, x, product))
    near = lgamma_two(tl.where(x < 1.5, x - 1.0, y - 2.0)) + tl.where(x < 1.5, grown * -1.0, grown)
    z = tl.where(far, x, 8.0)
    return tl.where(far, (z - 0.5) * (grown - 1.0) + 0.4189385332046727 + stirling(z), near)


@triton.jit
def digamma(x):
    """Derivative of lgamma; NaN at 0 and the negative integers."""
    y = x.to(tl.float64)
    low = y < 0.5
    result = digamma_positive(tl.where(low, 1.0 - y, y))
    apart = y - round_even(y)
    reflected = result - 3.141592653589793 * cos_turns(apart) / sin_turns(apart)
    result = tl.where(low, reflected, result)
    return tl.where(low & (apart == 0.0), float("nan"), result).to(x.dtype)


@triton.jit
def digamma_positive(x):
    """digamma(x) for x >= 1/2: by recurrence to [1, 2] below 10, by the asymptotic series from there on."""
    far = x >= 10.0
    y = tl.where(far, 1.5, x)
    top = tl.where(y < 1.0, -1.0, tl.full(x.shape, 0.0, tl.float64))
    bottom = tl.where(y < 1.0, y, 1.0)
    y = tl.where(y < 1.0, y + 1.0, y)
    for _ in tl.static_range(8):
        more = y > 2.0
        y = tl.where(more, y - 1.0, y)
        top = tl.where(more, top * y + bottom, top)
        bottom = tl.where(more, bottom * y, bottom)
    near = digamma_root(y) + top / bottom
    return tl.where(far, digamma_far(tl.where(far, x, 10.0)), near)


@triton.jit
def digamma_root(x):
    """digamma(x) for 1 <= x <= 2, exact about its root."""
    z = x - 1.5
    p = z * 0.000252259050696488506 - 0.000378390789724885796
    p = p * z + 0.000236501717193398146
    p = p * z - 0.000354763520533719788
    p = p * z + 0.000718410796904637793
    p = p * z - 0.00107768639672342246
    p = p * z + 0.00155807491372137622
    p = p * z - 0.00233755264710311834
    p = p * z + 0.00351875043619501355
    p = p * z - 0.00528090306609060557
    p = p * z + 0.00792697273564635838
    p = p * z - 0.0119081465139767383
    p = p * z + 0.0179072505636197744
    p = p * z - 0.0269758000292536668
    p = p * z + 0.0407608338843387033
    p = p * z - 0.061922133190727069
    p = p * z + 0.0949887244535418206
    p = p * z - 0.148404923054858075
    p = p * z + 0.240542484240784773
    p = p * z - 0.423627421281457284
    p = p * z + 0.95105587603183288
    return p * ((x - 1.4616321449683622) - 9.5499954299656977e-17)


@triton.jit
def digamma_far(x):
    """digamma(x) for x >= 10, by the asymptotic series (Bernoulli numbers)."""
    w = 1.0 / (x * x)
    p = w * -0.44325980392156863 + 0.08333333333333333
    p = p * w - 0.021092796092796094
    p = p * w + 0.007575757575757576
    p = p * w - 0.004166666666666667
    p = p * w + 0.003968253968253968
    p = p * w - 0.008333333333333333
    p = p * w + 0.08333333333333333
    return tl.log(x) - 0.5 / x - p * w
