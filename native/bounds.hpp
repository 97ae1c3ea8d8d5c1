// Upper bounds on what a list, a block or a sentence vector can add to a score. coil/lists/bounds.py stores the values needed.
#pragma once
#include <algorithm>
#include <limits>

#include "views.hpp"

namespace coil {

// A bound as an integer on the grid, rounded up by more than the rounding error of a product of MOST_DIM terms.
inline std::int64_t bound_of(double value, std::int64_t multiple = 1) {
    const double raised = (std::max(value, 0.0) * (1.0 + 2e-4) * static_cast<double>(GRID) + 2.0) * static_cast<double>(multiple);
    return raised < 4e18 ? static_cast<std::int64_t>(raised) : static_cast<std::int64_t>(4e18);
}

inline std::int64_t plus(std::int64_t a, std::int64_t b) {
    std::int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return b < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
    return sum;
}

// The largest factor, from the stored one in steps of 1/255. That was computed with K = k1 * (1 - b) + k1 * b / mean * length; the
// query has K' = c0 + c1 * length. A factor grows by no more than K / K', which is at most the larger ratio of coefficients.
inline double factor_bound(const SegmentView &segment, const Query &query, std::uint8_t steps) {
    if (!query.saturation.weighted) return 1.0;
    const auto ratio = [](double a, double b) { return a == 0.0 ? 0.0 : b > 0.0 ? a / b : std::numeric_limits<double>::infinity(); };
    const double of_lengths = segment.mean_length > 0.0 ? segment.k1 * segment.b / segment.mean_length : 0.0;
    const double grown = std::max({1.0, ratio(segment.k1 * (1.0 - segment.b), query.saturation.c0), ratio(of_lengths, query.saturation.c1)});
    return std::min(grown * (steps / 255.0), 1.0);
}

// The base plus the largest product with vectors of this length.
inline double fit_bound(const QueryToken &token, float norm) {
    return static_cast<double>(token.base) + (token.vector.dim ? static_cast<double>(token.vector.norm) * norm : 0.0);
}

}  // namespace coil
