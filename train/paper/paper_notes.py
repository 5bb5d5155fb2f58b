"""Where the paper contradicts itself or leaves something open, and what is done about it here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Inconsistency:
    """What stands there, and the choice made here."""

    what: str
    choice: str


INCONSISTENCIES = tuple(
    Inconsistency(what, choice)
    for what, choice in (
        (
            "The text divides by 197 tokens; the table of equal patches needs 196, without CLS.",
            "Both are computed above; patches196 is the default. Costs differ by 2% at most down "
            "to L = 50, ratios by less.",
        ),
        (
            "The token dropping table counts CLS in L, the patch tables do not.",
            "keep counts patches alone. CLS is never dropped.",
        ),
        (
            "Half of 196 patches and CLS make 99 tokens, printed as 100; (1 - d) L is in general "
            "no integer.",
            "keep is rounded down, and refused where nothing would be left.",
        ),
        (
            "The number of patches is floor(HW / p^2), which a grid of whole patches does not have "
            "unless p divides the side.",
            "Crops that p does not divide are refused; 240 px is divisible by all six.",
        ),
        (
            "Crops are 224 px for token dropping, 240 for patches, and unsaid for schedules.",
            "240 px by default. An uncompressed image then costs 4.59 units of MoCo-v3, not 4.",
        ),
        (
            "L is said to be inversely proportional to p. It is to p^2.",
            "p^2.",
        ),
        (
            "MoCo-v3's IN-1k budgets are twice the formula's, those of IN-100 are not.",
            "The formula counts. The paper's 1542M are 771M here, and no budget of one method is "
            "compared with another's.",
        ),
        (
            "Epochs of SimCLR and DINO, and DINO's number of small crops, are not stated.",
            "Six small crops and 300 epochs come nearest to DINO's budget and are the default of "
            "its paper mode; --local-crops sets them.",
        ),
        (
            "DINO's formula has one large crop as query and one as key; its authors' code has two "
            "of each.",
            "--mode paper and --mode official.",
        ),
        (
            "K is DINO's number of small crops, and the size of a sub-batch of the gradient study.",
            "Two names for two things.",
        ),
        (
            "IN-100 is said to have around 125,000 images; its budgets are those of 130,000; there "
            "are 126,689.",
            "Images are counted in the shards.",
        ),
        (
            "100M and 104M are said of the same runs.",
            "104M: 200 epochs of 130,000 images at 4 units.",
        ),
        (
            "The run of 200 epochs on IN-100 has a linear accuracy of 75.8 and of 77.1.",
            "Neither is taken for the truth: runs scatter that far.",
        ),
        (
            "Token dropping at 100M has linear 81.1 and 81.2, p30 80.6 and 80.5; but p30's nearest "
            "neighbours are 68.1 and 66.7.",
            "The last pair is no rounding: it shows how far runs scatter.",
        ),
        (
            "Fine-tuned, the 6168M run of MoCo-v3 has 82.5 and 81.8, the 1542M run 82.5 and 81.9.",
            "Two recipes of fine-tuning, it seems: compared within a table only.",
        ),
        (
            "DINO's and MoCo-v3's digits differ between tables and unused macros of the source "
            "(77.56 becomes 77.4, 1139M becomes 1138M).",
            "The typeset table is quoted.",
        ),
        (
            "The first figure claims 1/5 of the budget on IN-100 and 1/3 on IN-1k, the text less "
            "than 30% and a quarter.",
            "1/5 holds for nearest neighbours (71.2 against 70.0), not for linear (82.5 against "
            "84.4). A speed-up is told with the accuracy that it was reached at.",
        ),
        (
            "The cost figure has uncompressed keys; what is trained compresses the keys' patches.",
            "The cost of what is trained counts: both are above.",
        ),
        (
            "The learning rate is called polynomial with exponent 2, but its formula is 1 - t^2, "
            "not (1 - t)^2.",
            "The formula: .9375, .75 and .4375 of the peak at a quarter, half and three quarters.",
        ),
        (
            "The learning rate runs over iterations, budgets over units, schedules over progress.",
            "All of them run over the share of the budget that is spent.",
        ),
        (
            "Warm-up is 40 epochs, of 1000 or of 300, and unsaid for short budgets.",
            "A share of the budget: 4% on IN-100, 13.3% on IN-1k.",
        ),
        (
            "Whether uncompressed runs had a cosine or the new learning rate is not said.",
            "All runs here have 1 - t^2.",
        ),
        (
            "One pair an image is said to equal the symmetric loss with batch and epochs doubled.",
            "In pairs, yes; images in a batch and statistics of batch norm differ. --symmetric has "
            "the original's.",
        ),
        (
            "The argument for cheap samples lets a batch grow with them; training keeps its size.",
            "The batch is fixed.",
        ),
        (
            "Gradients were studied at five moments; what the schedule does between them, and in a "
            "run with another budget, is not said.",
            "A schedule says at which share of the budget each stage ends.",
        ),
        (
            "How positions follow another grid of patches is not said.",
            "They are taken at coordinates scaled to the patch side.",
        ),
        (
            "SimCLR's uncompressed run has a linear accuracy of 68.3, where 73.9 is known.",
            "Both are listed in the recipes, with who measured them.",
        ),
    )
)
