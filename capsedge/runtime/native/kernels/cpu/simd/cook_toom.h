// The matrices of Cook-Toom (Winograd) minimal filtering F(m, r): m outputs of a filter of r taps from n = m + r - 1
// inputs, y = Aᵀ ((G g) ⊙ (Bᵀ x)), with n products instead of m·r (Lavin and Gray, 2016). The points are dyadic, so Aᵀ and
// Bᵀ are exact in FP32; the divisions are in G, which is applied in FP64 when weights are packed. Rows are balanced by
// powers of two. Everything is of internal linkage, because levels share no functions.
#pragma once

namespace capsedge {

enum { kMostTile = 3, kMostTaps = 5, kMostPoints = kMostTile + kMostTaps - 1 };

struct CookToom {
  double at[kMostTile][kMostPoints];    // Aᵀ, [m][n]
  double g[kMostPoints][kMostTaps];     // [n][r]
  double bt[kMostPoints][kMostPoints];  // Bᵀ, [n][n]
};

static constexpr CookToom cook_toom(int m, int r) {
  constexpr double kPoint[kMostPoints - 1] = {0, 1, -1, 2, -0.5, -2};
  CookToom made{};
  const int n = m + r - 1;
  if (m == 1 || r == 1) {  // nothing to save
    for (int i = 0; i < n; ++i) {
      made.bt[i][i] = 1;
      made.at[r == 1 ? i : 0][i] = 1;
      made.g[i][r == 1 ? 0 : i] = 1;
    }
    return made;
  }
  for (int i = 0; i < n; ++i) {
    const bool infinity = i == n - 1;
    // Bᵀ: the coefficients of the product of (x - p) over the other points; G: powers of the point, divided by the
    // product's value there.
    double value = 1;
    int degree = 0;
    made.bt[i][0] = 1;
    for (int j = 0; j < n - 1; ++j) {
      if (j == i) continue;
      ++degree;
      for (int k = degree; k > 0; --k) made.bt[i][k] = made.bt[i][k - 1] - kPoint[j] * made.bt[i][k];
      made.bt[i][0] *= -kPoint[j];
      if (!infinity) value *= kPoint[i] - kPoint[j];
    }
    double power = 1;
    for (int k = 0; k < (m > r ? m : r); ++k) {
      const double at_point = infinity ? 0 : power;
      if (k < r) made.g[i][k] = infinity ? k == r - 1 : at_point / value;
      if (k < m) made.at[k][i] = infinity ? k == m - 1 : at_point;
      if (!infinity) power *= kPoint[i];
    }
    // The sum of a row of Bᵀ, at least 1 and at most 2 times a power of two.
    double total = 0;
    for (int k = 0; k < n; ++k) total += made.bt[i][k] < 0 ? -made.bt[i][k] : made.bt[i][k];
    double scale = 1;
    while (total * scale > 1.5) scale /= 2;
    while (total * scale < 0.75) scale *= 2;
    for (int k = 0; k < n; ++k) made.bt[i][k] *= scale;
    for (int k = 0; k < r; ++k) made.g[i][k] /= scale;
  }
  return made;
}

}  // namespace capsedge
