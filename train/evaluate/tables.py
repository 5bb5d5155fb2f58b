"""Results of evaluations as text."""

from typing import Any

from accelssl.formats import duration
from accelssl.text import plural
from accelssl.train.evaluate.linear_presets import CENTRAL, FRESH

NAMES = ("trained", "untrained", "pixels")


def score_table(result: dict[str, Any]) -> str:
    """Return the result of any protocol as lines of text."""
    tables = {"nn": _neighbours, "linear": _linear, "finetune": _finetune}
    return "\n".join(tables[result["protocol"]](result))


def _neighbours(result: dict[str, Any]) -> list[str]:
    return [
        f"{result['queries']} queries against a bank of {result['bank']}",
        f"{'':10} nn1   knn20",
        *(
            f"{name:10} {result[name]['nn1']:5.1f} {result[name]['knn20']:5.1f}"
            for name in NAMES
            if name in result
        ),
    ]


def _linear(result: dict[str, Any]) -> list[str]:
    found = {name: result[name] for name in NAMES if name in result}
    rates = [each["rate"] for each in result["trained"]["rates"]]
    lines = [
        f"linear probe ({result['preset']}) on {_crops(result['crops'])}: "
        f"{plural(result['epochs'], 'epoch')}, batch {result['batch']}, "
        f"{plural(result['train'], 'picture')}, {plural(result['classes'], 'class')}",
        f"{'':10} top-1  top-5  {'right of ' + format(result['val'], ','):>16}  rate",
        *(
            f"{name:10} {best['top1']:5.1f}  {_top5(best, result):>5}  {best['right1']:>16,}  "
            f"{best['rate']:g}"
            for name, best in found.items()
        ),
    ]
    has_diverged = any(each.get("diverged") for best in found.values() for each in best["rates"])
    if len(rates) > 1:
        lines += [
            f"{'top-1 by rate':14}" + "".join(f"{rate:>7g}" for rate in rates),
            *(
                f"{name:14}" + "".join(_top1(each) for each in best["rates"])
                for name, best in found.items()
            ),
            *(["-: the probe diverged at this rate."] if has_diverged else []),
            "Learning rate selected on the validation set (optimistic). "
            f"The protocol's default is {result['preset_rate']:g}.",
        ]
    if result["crops"] != FRESH:
        lines.append(
            "Published figures use new random crops in every epoch: --crops fresh "
            f"({result['epochs']} passes of the network)."
        )
    return lines


def _top1(found: dict[str, Any]) -> str:
    """Format the accuracy of one rate. Old results do not record divergence."""
    return f"{'-':>7}" if found.get("diverged") else f"{found['top1']:7.1f}"


def _top5(found: dict[str, Any], result: dict[str, Any]) -> str:
    """Format top-5, or nothing for five classes or fewer, where it is always 100%."""
    return f"{found['top5']:.1f}" if result["classes"] > 5 else ""


def _crops(crops: str) -> str:
    names = {CENTRAL: "central crops", FRESH: "new random crops in every epoch"}
    return names.get(crops, f"{crops} random crops of each picture")


def _finetune(result: dict[str, Any]) -> list[str]:
    top5, right5 = f", top-5 {result['top5']:.1f}%", f" and {result['right5']:,}"
    if result["classes"] <= 5:
        top5 = right5 = ""
    lines = [
        f"fine-tuning ({result['preset']}): {plural(result['epochs'], 'epoch')}, batch "
        f"{result['batch']}, {plural(result['classes'], 'class')}, {duration(result['seconds'])}",
        f"top-1 {result['top1']:.1f}%{top5}: {result['right1']:,}{right5} of "
        f"{result['images']:,}, after the last epoch",
    ]
    if "best_top1" in result:
        lines.append(
            f"best top-1 {result['best_top1']:.1f}%, after epoch {result['best_epoch']}: selected "
            "on the validation set (optimistic)"
        )
    if "ema_top1" in result:
        lines.append(f"top-1 of the moving average of the weights: {result['ema_top1']:.1f}%")
    return lines
