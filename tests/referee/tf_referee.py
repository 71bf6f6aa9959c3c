"""A program for an interpreter that has TensorFlow: answers what the tests of this folder ask.

One text in JSON per line of standard input, ``{"to", "question"}``; one answer per line of standard output. ``to`` is
the file beside this one whose ``answer`` is called with the question. None of them imports anything of the project.
"""

from __future__ import annotations

import importlib
import json
import sys

import tensorflow as tf

if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    tf.autograph.set_verbosity(0)
    answers, sys.stdout = sys.stdout, sys.stderr  # Keras prints
    print(json.dumps({"version": tf.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = importlib.import_module(asked["to"]).answer(asked["question"])
        print(json.dumps(answer), file=answers, flush=True)
