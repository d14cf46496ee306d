/* Included before the network: notes the clock at every layer. */
#include <stdint.h>
extern uint32_t caps_counts[];
#if defined(__arm__)
#define CAPSEDGE_STEP(layer) caps_counts[layer] = 0xFFFFFFu - *(volatile uint32_t *)0xE000E018u;
#elif defined(__riscv)
#define CAPSEDGE_STEP(layer) __asm__ volatile("csrr %0, minstret" : "=r"(caps_counts[layer]));
#endif
