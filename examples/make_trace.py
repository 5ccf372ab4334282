#!/usr/bin/env python3
"""Makes examples/trace.jsonl.gz: requests in Mooncake's format, from one seed, with no dependency.

People talk to one of a few assistants, each with a system prompt of its own; every turn sends the conversation so far
and a new question. Some ask about one of a few documents instead, once. A hash id stands for a block of 512 tokens and
all before it, so equal ids are equal prefixes.

    python3 examples/make_trace.py                    # writes the file beside this script
    python3 examples/make_trace.py --seed 7 --out x.jsonl.gz
"""

import argparse
import gzip
import io
import json
import pathlib
import random

BLOCK_TOKENS = 512
SYSTEM_PROMPT_TOKENS = [700, 1100, 1600, 2300]
DOCUMENT_TOKENS = [3000, 5000, 8000, 12000, 16000]
CONVERSATIONS = 70
DOCUMENT_QUESTIONS = 90
DURATION_MS = 600_000


class Prompts:
    """Turns prompts, given as segments (name, tokens), into ids of blocks."""

    def __init__(self):
        self.ids = {}

    def hash_ids(self, segments):
        ids, parent, content, room = [], None, [], BLOCK_TOKENS
        for name, tokens in segments:
            offset = 0
            while offset < tokens:
                taken = min(room, tokens - offset)
                content.append((name, offset, taken))
                offset += taken
                room -= taken
                if room == 0:
                    parent = self.block(parent, content)
                    ids.append(parent)
                    content, room = [], BLOCK_TOKENS
        if content:
            ids.append(self.block(parent, content))
        return ids

    def block(self, parent, content):
        return self.ids.setdefault((parent, tuple(content)), len(self.ids))


def conversation(number, rng):
    """The requests of one conversation as (timestamp, segments, output tokens)."""
    assistant = rng.randrange(len(SYSTEM_PROMPT_TOKENS))
    segments = [(f"system {assistant}", SYSTEM_PROMPT_TOKENS[assistant])]
    now_ms = rng.uniform(0, DURATION_MS * 0.7)
    for turn in range(rng.choice([1, 2, 3, 4, 5, 6, 8, 10])):
        question_tokens = rng.randint(20, 900)
        answer_tokens = rng.randint(50, 700)
        segments.append((f"question {number}.{turn}", question_tokens))
        yield now_ms, list(segments), answer_tokens
        segments.append((f"answer {number}.{turn}", answer_tokens))
        now_ms += 2_000 + rng.expovariate(1 / 20_000)


def document_question(number, rng):
    """One question about one document."""
    document = rng.randrange(len(DOCUMENT_TOKENS))
    segments = [
        ("system document", 400),
        (f"document {document}", DOCUMENT_TOKENS[document]),
        (f"document question {number}", rng.randint(20, 300)),
    ]
    return rng.uniform(0, DURATION_MS), segments, rng.randint(50, 400)


def requests(seed):
    rng = random.Random(seed)
    asked = [request for number in range(CONVERSATIONS) for request in conversation(number, rng)]
    asked += [document_question(number, rng) for number in range(DOCUMENT_QUESTIONS)]
    asked.sort(key=lambda request: request[0])
    prompts = Prompts()
    for now_ms, segments, output_tokens in asked:
        yield {
            "timestamp": int(now_ms),
            "input_length": sum(tokens for _, tokens in segments),
            "output_length": output_tokens,
            "hash_ids": prompts.hash_ids(segments),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).with_name("trace.jsonl.gz"))
    args = parser.parse_args()
    lines = "".join(json.dumps(request) + "\n" for request in requests(args.seed))
    packed = io.BytesIO()
    # No name and no time in the header: the same seed makes the same bytes.
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write(lines.encode())
    args.out.write_bytes(packed.getvalue())
    print(f"{args.out}: {lines.count(chr(10))} requests")


if __name__ == "__main__":
    main()
