/* Runs a network on a board that QEMU emulates, and prints the words "HASH CLOCK LOOP COUNT COUNT ..." in hexadecimal: a
   hash of all results, what the clock counted for a loop of LOOP instructions, and its state at every layer. It needs no
   library but memcpy and memset. */
#include <stdint.h>
#include <stddef.h>
#include CAPS_HEADER

#define CAPS_JOIN_(a, b) a##b
#define CAPS_JOIN(a, b) CAPS_JOIN_(a, b)
#define CAPS_LOOP_STEPS 100000u

uint32_t caps_counts[CAPS_STEPS];
static uint8_t arena[CAPS_ARENA] __attribute__((aligned(16)));
#define CAPS_TYPE_float32 float
#define CAPS_TYPE_int8 int8_t
#define CAPS_TYPE_uint8 uint8_t
#define CAPS_INPUT(type, name, size) static CAPS_TYPE_##type name[size];
CAPS_ARRAYS(CAPS_INPUT)
static float results[CAPS_RESULTS];

static uint32_t hash_of(const void *data, size_t size, uint32_t hash) {
  const uint8_t *p = (const uint8_t *)data;
  for (; size > 0; size--) hash = (hash ^ *p++) * 16777619u;
  return hash;
}

/* The same inputs everywhere: floats from 0 to 1, integers over their range. */
#define CAPS_NUMBER_float32(bits) ((float)(bits) / 65536.0f)
#define CAPS_NUMBER_int8(bits) ((int8_t)((int)((bits) >> 8) - 128))
#define CAPS_NUMBER_uint8(bits) ((uint8_t)((bits) >> 8))
#define CAPS_FILL(type, name, size)                                                                            \
  for (k = 0; k < size; k++) {                                                                                 \
    state = state * 1103515245u + 12345u;                                                                      \
    name[k] = CAPS_NUMBER_##type(state >> 8 & 0xffffu);                                                        \
  }
static void fill(void) {
  uint32_t state = 1;
  int k;
  CAPS_ARRAYS(CAPS_FILL)
}

static uint32_t run(void) {
  static const int sizes[] = {CAPS_SIZES};
  CAPS_JOIN(CAPS_NAME, _outputs) outputs;
  float **const fields = (float **)(void *)&outputs;
  float *next = results;
  unsigned k;
  for (k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    fields[k] = next;
    next += sizes[k];
  }
  fill();
  CAPS_JOIN(CAPS_NAME, _run)(arena, CAPS_ARGUMENTS, &outputs);
  return hash_of(results, sizeof results, 2166136261u);
}

#if defined(__arm__) || defined(__riscv)
static void print(const char *text);

static void print_number(uint32_t number) {
  char text[10];
  int k;
  for (k = 0; k < 8; k++) text[k] = "0123456789abcdef"[number >> (28 - 4 * k) & 15];
  text[8] = ' ';
  text[9] = 0;
  print(text);
}
static void all(uint32_t first, uint32_t last) {
  const uint32_t hash = run();
  int k;
  print_number(hash);
  print_number(last - first);
  print_number(2 * CAPS_LOOP_STEPS);
  for (k = 0; k < CAPS_STEPS; k++) print_number(caps_counts[k]);
  print("\n");
}
#endif

#if defined(__arm__)
/* SysTick counts down, in 24 bits; print and leave are calls of semihosting. */
#define CAPS_REGISTER(address) (*(volatile uint32_t *)(address))
extern uint32_t caps_stack_end;

static void call(uint32_t number, const void *argument) {
  register uint32_t r0 __asm__("r0") = number;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}
static void print(const char *text) { call(4, text); }

static void __attribute__((noinline)) measure(void) {
  uint32_t n = CAPS_LOOP_STEPS, first, last;
  CAPS_REGISTER(0xE000E014) = 0xFFFFFF;
  CAPS_REGISTER(0xE000E018) = 0;
  CAPS_REGISTER(0xE000E010) = 5;
  first = CAPS_REGISTER(0xE000E018);
  __asm__ volatile("1: subs %0, #1\n bne 1b" : "+l"(n) : : "cc");
  last = CAPS_REGISTER(0xE000E018);
  all(last, first);
}

void caps_reset(void) {
  CAPS_REGISTER(0xE000ED88) |= 0xFu << 20; /* switches the FPU on */
  __asm__ volatile("dsb\n isb");
  measure();
  call(0x18, (const void *)0x20026);
  for (;;) {}
}
static void fault(void) {
  print("fault\n");
  call(0x18, (const void *)0x20023);
  for (;;) {}
}
__attribute__((section(".vectors"), used)) const void *const caps_vectors[16] = {
  &caps_stack_end, (const void *)caps_reset, (const void *)fault, (const void *)fault,
  (const void *)fault, (const void *)fault, (const void *)fault, (const void *)fault};
#elif defined(__riscv)
/* The board has a serial port, a register that ends QEMU, and a counter of instructions. */
static void print(const char *text) {
  for (; *text; text++) *(volatile uint8_t *)0x10000000u = (uint8_t)*text;
}
void *memcpy(void *to, const void *from, size_t n) {
  uint8_t *p = (uint8_t *)to;
  const uint8_t *q = (const uint8_t *)from;
  for (; n > 0; n--) *p++ = *q++;
  return to;
}
void *memset(void *to, int value, size_t n) {
  uint8_t *p = (uint8_t *)to;
  for (; n > 0; n--) *p++ = (uint8_t)value;
  return to;
}
static uint32_t clock(void) {
  uint32_t now;
  __asm__ volatile("csrr %0, minstret" : "=r"(now));
  return now;
}
__attribute__((used)) void caps_measure(void) {
  uint32_t n = CAPS_LOOP_STEPS, first = clock(), last;
  __asm__ volatile("1: addi %0, %0, -1\n bnez %0, 1b" : "+r"(n));
  last = clock();
  all(first, last);
  *(volatile uint32_t *)0x100000u = 0x5555;
  for (;;) {}
}
__asm__(".section .vectors, \"ax\"\n.globl caps_reset\ncaps_reset:\n la sp, caps_stack_end\n"
#if defined(__riscv_flen)
        " li t0, 0x2000\n csrs mstatus, t0\n"
#endif
        " j caps_measure\n");
#else
#include <stdio.h>
int main(void) {
  printf("%08x\n", run());
  return 0;
}
#endif
