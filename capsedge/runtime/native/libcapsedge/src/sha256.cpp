#include "sha256.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace capsedge::libcapsedge {

namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (section 4.2.2).
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotated(uint32_t x, int by) { return x >> by | x << (32 - by); }

void block(std::array<uint32_t, 8>& hash, const unsigned char* bytes) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t)
    w[t] = uint32_t{bytes[4 * t]} << 24 | uint32_t{bytes[4 * t + 1]} << 16 | uint32_t{bytes[4 * t + 2]} << 8 | bytes[4 * t + 3];
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = rotated(w[t - 15], 7) ^ rotated(w[t - 15], 18) ^ w[t - 15] >> 3;
    const uint32_t s1 = rotated(w[t - 2], 17) ^ rotated(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = hash;
  for (int t = 0; t < 64; ++t) {
    const uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
    const uint32_t first = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
    const uint32_t second = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) hash[i] += sums[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  std::array<uint32_t, 8> hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t whole = bytes.size() / 64;
  for (size_t i = 0; i < whole; ++i) block(hash, data + 64 * i);
  // The remaining bytes, a one bit, zeros, and the length in bits: one or two blocks.
  unsigned char rest[128] = {};
  const size_t left = bytes.size() % 64, size = left < 56 ? 64 : 128;
  if (left > 0) std::memcpy(rest, data + 64 * whole, left);
  rest[left] = 0x80;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (size_t i = 0; i < 8; ++i) rest[size - 1 - i] = static_cast<unsigned char>(bits >> 8 * i);
  for (size_t i = 0; i < size; i += 64) block(hash, rest + i);
  std::string text;
  for (const uint32_t word : hash)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}

}  // namespace capsedge::libcapsedge
