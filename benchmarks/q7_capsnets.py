"""Q7-CapsNets' own C code with its own trained weights, wrapped in the functions of capsedge's C.

Costa, Costa, Gomes and Pinto, "Shifting Capsule Networks from the Cloud to the Deep Edge" (2021):
hand-written kernels for INT8 capsules, on top of CMSIS-NN. Their MNIST program is tied to one board, so the
function that calls their kernels is written here; its numbers and weights come from their header files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

NETWORK = "Q7-CapsNets' MNIST"
_API = "Q7-CapsNets/Arm_Cortex-M/API"
_EXAMPLE = "Q7-CapsNets/Arm_Cortex-M/Examples/MNIST_L4R5ZI/Core/Inc"
_CMSIS = "CMSIS_5/CMSIS"
_NN = f"{_CMSIS}/NN/Source"
_FOLDERS = (
    *(f"{_API}/Inc", f"{_API}/Src", _EXAMPLE),
    *(f"{_CMSIS}/Core/Include", f"{_CMSIS}/DSP/Include", f"{_CMSIS}/NN/Include"),
    *(f"{_NN}/{kind}Functions" for kind in ("Convolution", "Activation", "Softmax", "NNSupport")),
)
_SOURCES = (
    *("caps_layer", "mat_ops_q7", "math_backend", "matrix_q7_backend"),
    *("arm_convolve_HWC_q7_basic", "arm_convolve_HWC_q7_basic_nonsquare"),
    *(
        "arm_convolve_HWC_q7_fast_nonsquare",
        "arm_relu_q7",
        "arm_softmax_q7",
        "arm_q7_to_q15_no_shift",
    ),
    *("arm_nn_mat_mult_kernel_q7_q15", "arm_nn_mat_mult_kernel_q7_q15_reordered"),
    "arm_q7_to_q15_reordered_no_shift",
)
_HEADER = """#include <stdint.h>
typedef struct { float *lengths; } net_outputs;
void net_run(void *arena, const float *input, net_outputs *outputs);
"""
# The weights are constants, whereas their program copies them to RAM; buffers are as large as theirs.
_NETWORK = """
#include "params_mnist.h"
#undef wt
#undef bias
#include "wt_q.h"
#undef wt
#include "bias_q.h"
#undef bias
#include "net.h"
#ifndef CAPSEDGE_STEP
#define CAPSEDGE_STEP(layer)
#endif
static const q7_t conv_weight[] = CONV2D_WT, conv_bias[] = CONV2D_BIAS;
static const q7_t primary_weight[] = PRIMARY_CAPSULE_WT, primary_bias[] = PRIMARY_CAPSULE_BIAS;
static const q7_t capsule_weight[] = CAPSULE_WT;
static const uint16_t out_shifts[] = CAP_OUT_RSHIFTS, squash_in[] = CAP_SQUASH_IN_QN;
static const uint16_t squash_out[] = CAP_SQUASH_OUT_QN;
static const uint16_t agreement_shifts[] = CAP_B_INST_RSHIFTS, logit_shifts[] = CAP_B_NEW_RSHIFTS;
static q7_t one[CONV1_OUT_DIM * CONV1_OUT_DIM * CONV1_NUM_FILTERS], two[sizeof one];
static q7_t work[10240] __attribute__((aligned(4)));
static q7_t votes[CAP_NUM_CAP * CAP_INPUT_NUM_CAP * CAP_DIM_CAP];
static q7_t logits[CAP_NUM_CAP * CAP_INPUT_NUM_CAP], couplings[sizeof logits];

void net_run(void *arena, const float *input, net_outputs *outputs) {
  int k;
  (void)arena;
  /* Not counted, as theirs is given bytes. */
  for (k = 0; k < INPUT_DATA_SIZE; k++) two[k] = (q7_t)(input[k] * 127.0f);
  CAPSEDGE_STEP(0)
  arm_convolve_HWC_q7_basic(
      two, CONV1_IN_DIM, CONV1_CH_DIM, conv_weight, CONV1_NUM_FILTERS, CONV1_KERNEL_SIZE, CONV1_PADDING,
      CONV1_STRIDE, conv_bias, CONV1_BIAS_LSHIFT, CONV1_OUT_RSHIFT, one, CONV1_OUT_DIM, (q15_t *)work, 0);
  arm_relu_q7(one, sizeof one);
  CAPSEDGE_STEP(1)
  primary_capsule_layer_q7_basic(
      one, PCAP_IN_DIM, PCAP_IN_DIM, PCAP_CH_DIM, (q7_t *)primary_weight, PCAP_NUM_CAP, PCAP_DIM_CAP,
      PCAP_KERNEL_SIZE, PCAP_KERNEL_SIZE, PCAP_PADDING, PCAP_PADDING, PCAP_STRIDE, PCAP_STRIDE,
      (q7_t *)primary_bias, PCAP_BIAS_LSHIFT, PCAP_OUT_RSHIFT, PCAP_SQUASH_IN_QN, PCAP_SQUASH_OUT_QN, two,
      PCAP_OUT_DIM, PCAP_OUT_DIM, (q15_t *)work);
  CAPSEDGE_STEP(2)
  capsule_layer_q7(
      two, CAP_NUM_CAP, CAP_DIM_CAP, CAP_INPUT_NUM_CAP, CAP_INPUT_DIM_CAP, CAP_NUM_ROUT,
      (q7_t *)capsule_weight, CAP_IN_HAT_RSHIFT, (uint16_t *)out_shifts, (uint16_t *)agreement_shifts,
      (uint16_t *)logit_shifts, (uint16_t *)squash_in, (uint16_t *)squash_out, one, votes, logits, couplings,
      work);
  capsule_length_q7(one, CAP_NUM_CAP, CAP_DIM_CAP, two);
  CAPSEDGE_STEP(3)
  for (k = 0; k < CAP_NUM_CAP; k++) outputs->lengths[k] = (float)two[k] / 128.0f;
}
"""


def programs(
    sources: Path,
) -> dict[str, tuple[dict[str, bytes], dict[str, Any], tuple[str, ...], tuple[str, ...]]]:
    """Their network by how it is compiled, in the form of `benchmarks.microcontroller.Candidate`.

    Their project compiles each file separately; compiling all files as one lets the compiler inline freely,
    as in capsedge's single file.

    Args:
        sources: folder with ``Q7-CapsNets`` and ``CMSIS_5`` as published; if one is missing, there are none.
    """
    folders = [(sources / folder).resolve() for folder in _FOLDERS]
    if not all(folder.is_dir() for folder in folders):
        return {}
    paths = [folder / f"{name}.c" for name in _SOURCES for folder in folders]
    own = tuple(str(path) for path in paths if path.is_file())
    description = {
        "name": "net",
        "layers": [{}, {}, {}],
        "outputs": [{"name": "lengths", "field": "lengths", "shape": [10]}],
        "memory": {"arena_bytes": 16},
        "input": {"size": 784},
    }
    flags = ("-std=gnu11", "-O3", "-w", *(f"-I{folder}" for folder in folders))
    declared = '#include "arm_nnfunctions.h"\n#include "caps_layer.h"\n'
    included = "".join(f'#include "{path}"\n' for path in own)

    def files(head: str) -> dict[str, bytes]:
        return {"net.h": _HEADER.encode(), "net.c": (head + _NETWORK).encode()}

    return {
        "Q7-CapsNets, CMSIS-NN": (files(declared), description, flags, own),
        "Q7-CapsNets, CMSIS-NN, compiled as one file": (files(included), description, flags, ()),
    }
