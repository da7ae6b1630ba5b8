"""Run by an official SDK's own interpreter: many samples, and clients unpickled from one another."""

import json
import pickle
import sys

import tinker
from tinker import types

TOKENS = [10, 20, 30, 40]


def main() -> None:
    """Samples in parallel, one that is refused, and two clones."""
    service = tinker.ServiceClient()
    sampler = service.create_sampling_client(base_model=sys.argv[1])
    prompt = types.ModelInput.from_ints(TOKENS)

    def params(seed: int) -> types.SamplingParams:
        return types.SamplingParams(max_tokens=4, seed=seed, stop=[])

    futures = [sampler.sample(prompt, 1, params(seed)) for seed in range(20)]
    sampled = [list(future.result().sequences[0].tokens) for future in futures]
    clones = [pickle.loads(pickle.dumps(sampler)) for _ in range(2)]
    cloned = [list(clone.sample(prompt, 1, params(0)).result().sequences[0].tokens) for clone in clones]
    try:
        sampler.sample(types.ModelInput.from_ints([10**6]), 1, params(0)).result()
        refused = None
    except tinker.RequestFailedError as error:
        refused = error.category.value
    try:
        who = service.create_rest_client().whoami().result().user_urn
    except RuntimeError:
        who = None
    print(json.dumps({"sampled": sampled, "cloned": cloned, "refused": refused, "who": who}))


if __name__ == "__main__":
    main()
