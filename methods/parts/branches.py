"""A draft tree in one flat array, put together from chains of tokens, each hung below a node."""

from __future__ import annotations

import numpy as np

from specbench.models.compiled_code import njit
from specbench.types import ROOT

# Columns of a row, one row per node and the last for the root, which a parent of -1 finds. BUCKET:
# of row i, the first node of hash value i, and CHAIN: the next node of the same value, of nodes
# that share prefixes. END: of row i, the i-th end of a chain.
TOKEN, PARENT, SOURCE, BUCKET, CHAIN, END = range(6)
SIZE, ENDS = TOKEN, PARENT  # of the root: how many nodes, and ends of chains, there are


def allocate_tree(nodes: int) -> np.ndarray:
    """An array for a tree of at most ``nodes`` nodes."""
    return np.empty((nodes + 1, 6), np.int32)


@njit(widen=True)
def start(tree):
    """Make the tree empty. The root is the first end."""
    tree[ROOT, SIZE], tree[ROOT, ENDS], tree[0, END] = 0, 1, ROOT
    for row in range(len(tree)):
        tree[row, BUCKET] = ROOT


@njit(widen=True)
def hash_child(node, token, values):
    """One of that many hash values, of the child of ``node`` that has this token."""
    return ((token * 0x9E3779B1 + node * 0x85EBCA77) >> 8) % values


@njit(widen=True)
def child(tree, node, token):
    """Find the child of ``node`` that has this token; returns its number, or ROOT if no child has
    it.
    """
    found = np.int64(tree[hash_child(node, token, len(tree)), BUCKET])
    while found != ROOT and (tree[found, TOKEN] != token or tree[found, PARENT] != node):
        found = np.int64(tree[found, CHAIN])
    return found


@njit(widen=True)
def add(tree, node, tokens, first, source, room, merge):
    """Spell ``tokens`` from number ``first`` on below ``node`` with at most ``room`` new nodes;
    returns the last node.

    merge: a child that repeats a sibling's token is that sibling, with its source; False makes
    another node.
    """
    for place in range(first, len(tokens)):
        below = child(tree, node, np.int64(tokens[place])) if merge else ROOT
        if below == ROOT:
            if room <= 0:
                break
            below, room = np.int64(tree[ROOT, SIZE]), room - 1
            tree[ROOT, SIZE] += 1
            tree[below, TOKEN], tree[below, PARENT], tree[below, SOURCE] = (
                tokens[place],
                node,
                source,
            )
            if merge:
                bucket = hash_child(node, np.int64(tokens[place]), len(tree))
                tree[below, CHAIN], tree[bucket, BUCKET] = tree[bucket, BUCKET], below
        node = below
    return node


@njit(widen=True)
def spell(tree, chains, room, merge):
    """Make the tree of (n, length) chains below the root, with at most ``room`` nodes.

    The source of a node is the number of its first chain. merge: a trie, whose last chain may be
    cut; False: chains side by side, and none that does not fit completely.
    """
    start(tree)
    for number in range(len(chains)):
        left = room - np.int64(tree[ROOT, SIZE])
        if not merge and chains.shape[1] > left:
            break
        add(tree, ROOT, chains[number], 0, number, left, merge)


@njit(widen=True)
def copy_nodes(tree, nodes):
    """Copy tokens, parents and sources to the rows of ``nodes``; returns how many nodes the tree
    has.
    """
    size = np.int64(tree[ROOT, SIZE])
    for node in range(size):
        for column in range(BUCKET):
            nodes[column, node] = tree[node, column]
    return size
