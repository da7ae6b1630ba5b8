"""Run by an interpreter that has OpenAI's own client: completions, the list of models, a refusal.

Prints one JSON object with what happened; the test judges it.
"""

import json
import sys

import openai

MODEL = sys.argv[1]


def main() -> None:
    client = openai.OpenAI(base_url=sys.argv[2], api_key="tml-test", max_retries=0)
    names = [model.id for model in client.models.list()]
    text = client.completions.create(model=MODEL, prompt="a pot", max_tokens=4, seed=1, logprobs=2)
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "what is a pot?"}],
        max_tokens=4,
        n=2,
        seed=1,
        logprobs=True,
        top_logprobs=1,
    )
    try:
        client.completions.create(model=MODEL, prompt="x", frequency_penalty=0.5)
        refusal = ""
    except openai.UnprocessableEntityError as error:
        refusal = str(error)
    print(
        json.dumps(
            {
                "models": names,
                "text": text.choices[0].text,
                "token_logprobs": text.choices[0].logprobs.token_logprobs,
                "written": text.usage.completion_tokens,
                "answers": [choice.message.content for choice in chat.choices],
                "logprobs": [len(choice.logprobs.content) for choice in chat.choices],
                "refusal": refusal,
            }
        )
    )


if __name__ == "__main__":
    main()
