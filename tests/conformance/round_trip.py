"""Run by an official SDK's own interpreter: the whole round trip, written as that SDK's users write it.

Prints one JSON object with what happened; the test judges it.
"""

import json
import sys

import tinker
from tinker import types

BASE_MODEL = sys.argv[1]
TOKENS = [10, 20, 30, 40, 50, 60, 70, 80]


def main() -> None:
    """Session -> LoRA client -> five steps -> save -> sampler -> sample -> logprobs -> load."""
    service = tinker.ServiceClient(user_metadata={"test": "conformance"})
    capabilities = service.create_rest_client() and service.get_server_capabilities()
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=1)
    if hasattr(training, "result"):
        training = training.result()
    info = training.get_info()
    if hasattr(info, "result"):
        info = info.result()

    datum = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
    )
    losses, step_metrics = [], []
    for _ in range(5):
        forward_backward = training.forward_backward([datum, datum], "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=1e-2))
        result = forward_backward.result()
        losses.append(result.metrics["loss:sum"])
        step_metrics.append(step.result().metrics)
    forward = training.forward([datum], "cross_entropy").result()
    before_load = forward.metrics["loss:sum"]
    saved = training.save_state("five-steps").result().path

    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=1e-1)).result()
    spoiled = training.forward([datum], "cross_entropy").result().metrics["loss:sum"]

    snapshot = training.save_weights_for_sampler("named").result().path
    sampler = service.create_sampling_client(model_path=snapshot)
    ephemeral = training.save_weights_and_get_sampling_client("ignored")
    if hasattr(ephemeral, "result"):
        ephemeral = ephemeral.result()
    base = service.create_sampling_client(base_model=BASE_MODEL)
    prompt = types.ModelInput.from_ints(TOKENS[:3])
    params = types.SamplingParams(max_tokens=6, seed=7, temperature=0.8)
    first = sampler.sample(prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2).result()
    again = ephemeral.sample(prompt, 2, params).result()
    of_base = base.compute_logprobs(prompt).result()
    logprobs = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()

    training.load_state(saved).result()
    after_load = training.forward([datum], "cross_entropy").result().metrics["loss:sum"]
    print(
        json.dumps(
            {
                "version": tinker.__version__,
                "capabilities": [model.model_name for model in capabilities.supported_models],
                "info": [info.model_data.model_name, info.lora_rank, info.is_lora],
                "losses": losses,
                "step_metrics": step_metrics,
                "output_keys": sorted(forward.loss_fn_outputs[0]),
                "output_shape": list(forward.loss_fn_outputs[0]["logprobs"].to_numpy().shape),
                "paths": [saved, snapshot],
                "model_id": training.model_id,
                "sequences": [[list(s.tokens), list(s.logprobs), s.stop_reason] for s in first.sequences],
                "prompt_logprobs": list(first.prompt_logprobs),
                "topk": first.topk_prompt_logprobs,
                "again": [list(s.tokens) for s in again.sequences],
                "of_base": list(of_base),
                "logprobs": list(logprobs),
                "loss": {"before_load": before_load, "spoiled": spoiled, "after_load": after_load},
            }
        )
    )


if __name__ == "__main__":
    main()
