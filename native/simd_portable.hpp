// Sixteen floats at a time without special instructions. The other simd files have the same functions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "views.hpp"

namespace coil {
namespace {

inline float half_to_float(std::uint16_t h) {
    const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
    float value;
    if (exponent == 0) {
        value = std::ldexp(static_cast<float>(fraction), -24);
        return sign ? -value : value;
    }
    const std::uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | (fraction << 13);
    std::memcpy(&value, &bits, 4);
    return value;
}

struct Portable {
    struct Floats {
        float lane[LANES];
    };
    using Carry = float;

    template <class Make>
    static Floats made(Make make) {
        Floats found;
        for (int i = 0; i < LANES; ++i) found.lane[i] = make(i);
        return found;
    }
    static Floats spread(float value) {
        return made([&](int) { return value; });
    }
    static Floats load(const float *at) {
        return made([&](int i) { return at[i]; });
    }
    static Floats load(const std::uint16_t *halves) {
        return made([&](int i) { return half_to_float(halves[i]); });
    }
    static void store(float *to, const Floats &a) { std::memcpy(to, a.lane, sizeof a.lane); }
    static Floats add(const Floats &a, const Floats &b) {
        return made([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Floats multiply(const Floats &a, const Floats &b) {
        return made([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Floats larger(const Floats &a, const Floats &b) {
        return made([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static float largest(const Floats &a) { return *std::max_element(a.lane, a.lane + LANES); }
    // The lanes of the mask, with another value in the rest.
    static Floats only(unsigned mask, const Floats &a, float other) {
        return made([&](int i) { return mask >> i & 1 ? a.lane[i] : other; });
    }

    // Products with a group of int8 mentions, stored in quads of four dimensions. QUADS 0: known at run time.
    template <int QUADS>
    struct Int8Group {
        const QueryVector &q;
        int quads;
        Int8Group(const QueryVector &vector, int n) : q(vector), quads(QUADS ? QUADS : n) {}
        Floats operator()(const std::uint8_t *group, const std::uint8_t *scales) const {
            std::int32_t sums[LANES] = {};
            for (int c = 0; c < quads; ++c)
                for (int i = 0; i < LANES; ++i)
                    for (int d = 0; d < 4; ++d)
                        sums[i] += static_cast<std::int32_t>(static_cast<std::int8_t>(group[64 * c + 4 * i + d])) * q.codes[4 * c + d];
            return made([&](int i) { return static_cast<float>(sums[i]) * (SCALES[scales[i]] * q.scale); });
        }
    };

    // Integer sums of four rows of int8, each with LINES of 64 dimensions; LINES 0: known at run time.
    template <int LINES>
    static void int8_rows(const std::uint8_t *const rows[4], int dim, const QueryVector &q, std::int32_t *sums) {
        for (int r = 0; r < 4; ++r) {
            sums[r] = 0;
            for (int d = 0; d < dim; ++d) sums[r] += static_cast<std::int32_t>(static_cast<std::int8_t>(rows[r][d])) * q.codes[d];
        }
    }

    // A run is the mentions of a posting. `carry` is the best value of the run that is open when the group begins; the best value of
    // every run that ends because another starts is written to `out`.
    static void end_runs(const Floats &found, unsigned starts, Carry &carry, float *out) {
        for (int i = 0; i < LANES; ++i) {
            if (starts >> i & 1) {
                *out++ = carry;
                carry = found.lane[i];
            } else if (found.lane[i] > carry) {
                carry = found.lane[i];
            }
        }
    }
    static Carry carry(float value) { return value; }
    static float last(Carry carry) { return carry; }

    // `first` + the position of every set bit; up to sixteen values are written, whatever the mask is.
    static void places(unsigned mask, std::uint32_t first, std::uint32_t *out) {
        for (; mask; mask &= mask - 1) *out++ = first + static_cast<std::uint32_t>(__builtin_ctz(mask));
    }

    // tf / (tf + (c0 + c1 * length)) of sixteen postings; tf is the difference of consecutive `ends`.
    static Floats factors(const std::uint32_t *ends, const std::uint16_t *rows, const std::uint32_t *lengths, float c0, float c1) {
        return made([&](int i) {
            const float tf = static_cast<float>(static_cast<std::int32_t>(ends[i] - ends[i - 1]));
            return tf / (tf + (c0 + c1 * static_cast<float>(static_cast<std::int32_t>(lengths[rows[i]]))));
        });
    }

    static void to_grid(const Floats &a, std::int64_t *out) {
        for (int i = 0; i < LANES; ++i) out[i] = to_grid(a.lane[i]);
    }
    static std::int64_t to_grid(float value) { return std::llrint(value * GRID); }

    // Integer sums times the scales of rows and of the query.
    static Floats scaled(const std::int32_t *sums, const std::uint8_t *scales, float scale) {
        return made([&](int i) { return static_cast<float>(sums[i]) * (SCALES[scales[i]] * scale); });
    }

    // How many of 32 ascending rows are lower than this one.
    static int count_below(const std::uint16_t *rows, std::int32_t row) {
        int count = 0;
        for (int i = 0; i < 32; ++i) count += rows[i] < row;
        return count;
    }

    static Floats from_grid(const std::int64_t *scores) {
        return made([&](int i) { return static_cast<float>(scores[i]) * (1.0f / GRID); });
    }
    static Floats bytes(const std::uint8_t *at) {
        return made([&](int i) { return static_cast<float>(at[i]); });
    }
    static Floats size(const Floats &a) {
        return made([&](int i) { return std::abs(a.lane[i]); });
    }
    static unsigned reach(const Floats &a, float threshold) {
        unsigned mask = 0;
        for (int i = 0; i < LANES; ++i) mask |= static_cast<unsigned>(a.lane[i] >= threshold) << i;
        return mask;
    }

    // Which of sixteen scores reach a threshold.
    static unsigned reach(const std::int64_t *scores, std::int64_t threshold) {
        unsigned mask = 0;
        for (int i = 0; i < LANES; ++i) mask |= static_cast<unsigned>(scores[i] >= threshold) << i;
        return mask;
    }
};

}  // namespace
}  // namespace coil
