// Products of a query vector with sixteen mentions at a time: int8, fp16 and fp32.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "views.hpp"
#if COIL_ISA > 0
#include <immintrin.h>
#endif

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

inline std::int64_t to_grid(float value) {
#if COIL_ISA > 0
    return _mm_cvtss_si64(_mm_set_ss(value * GRID));
#else
    return std::llrint(value * GRID);
#endif
}
#if COIL_ISA == 5
// Scale byte c is 2^((c - 160) / 8): one of sixteen values, by its lower half, times a power of four, which is added to the
// exponent. `steps` are the first sixteen scales, or these times a factor.
inline __m512 scales_of(const std::uint8_t *codes, __m512 steps) {
    const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
    const __m512i fours = _mm512_and_si512(_mm512_slli_epi32(c, 20), _mm512_set1_epi32(0x0f000000));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(_mm512_permutexvar_ps(c, steps)), fours));
}

struct Sixteen {  // products of a group
    __m512 values;
    inline void store(float *out) const { _mm512_storeu_ps(out, values); }
};
#else
struct Sixteen {
    alignas(32) float values[LANES];
    inline void store(float *out) const { std::memcpy(out, values, sizeof values); }
};
#endif

template <int QUADS>  // a quad is four dimensions; 0: the number is known only at run time
struct Int8Group {
#if COIL_ISA == 5
    __m512i high[QUADS ? QUADS : 1], low[QUADS ? QUADS : 1], shift;
    __m512 steps;  // the first sixteen scales, times the query's
    explicit Int8Group(const QueryVector &q) {
        // Values are shifted by 128 to be unsigned; 32-bit sums wrap around and back again.
        shift = _mm512_set1_epi32(static_cast<std::int32_t>(0u - 128u * static_cast<std::uint32_t>(q.code_sum)));
        steps = _mm512_mul_ps(_mm512_loadu_ps(SCALES), _mm512_set1_ps(q.scale));
        for (int c = 0; c < QUADS; ++c) {
            std::int32_t h, l;
            std::memcpy(&h, q.high.data() + 4 * c, 4);
            std::memcpy(&l, q.low.data() + 4 * c, 4);
            high[c] = _mm512_set1_epi32(h);
            low[c] = _mm512_set1_epi32(l);
        }
    }
    // Written out quad by quad, so that the compiler keeps the query in registers.
    template <int... C>
    inline void add_quads(const std::uint8_t *group, __m512i &sum_high, __m512i &sum_low, std::integer_sequence<int, C...>) const {
        const __m512i sign = _mm512_set1_epi8(-128);
        const auto add = [&](const std::uint8_t *quad, __m512i h, __m512i l) {
            const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(quad), sign);
            sum_high = _mm512_dpbusd_epi32(sum_high, v, h);
            sum_low = _mm512_dpbusd_epi32(sum_low, v, l);
        };
        (add(group + 64 * C, high[C], low[C]), ...);
    }
    inline Sixteen operator()(const std::uint8_t *group, const std::uint8_t *scales, int quads,
                              const QueryVector &q) const {
        const __m512i sign = _mm512_set1_epi8(-128);
        __m512i sum_high = _mm512_setzero_si512(), sum_low = shift;
        if constexpr (QUADS > 0) {
            add_quads(group, sum_high, sum_low, std::make_integer_sequence<int, QUADS>());
        } else {
            for (int c = 0; c < quads; ++c) {
                std::int32_t h, l;
                std::memcpy(&h, q.high.data() + 4 * c, 4);
                std::memcpy(&l, q.low.data() + 4 * c, 4);
                const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(group + 64 * c), sign);
                sum_high = _mm512_dpbusd_epi32(sum_high, v, _mm512_set1_epi32(h));
                sum_low = _mm512_dpbusd_epi32(sum_low, v, _mm512_set1_epi32(l));
            }
        }
        const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sum_high, 7), sum_low);
        return {_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scales_of(scales, steps))};
    }
#else
    explicit Int8Group(const QueryVector &) {}
    inline Sixteen operator()(const std::uint8_t *group, const std::uint8_t *scales, int quads,
                              const QueryVector &q) const {
        const int n = QUADS ? QUADS : quads;
        alignas(32) std::int32_t sums[LANES];
#if COIL_ISA == 2
        __m256i part[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int c = 0; c < n; ++c) {
            std::int64_t four;
            std::memcpy(&four, q.codes.data() + 4 * c, 8);
            const __m256i codes = _mm256_set1_epi64x(four);
            for (int p = 0; p < 4; ++p) {  // four mentions at a time, their values widened to 16 bits
                const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(group + 64 * c + 16 * p));
                part[p] = _mm256_add_epi32(part[p], _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), codes));
            }
        }
        for (int p = 0; p < 2; ++p) {
            const __m256i pairs = _mm256_hadd_epi32(part[2 * p], part[2 * p + 1]);
            _mm256_store_si256(reinterpret_cast<__m256i *>(sums + 8 * p), _mm256_permute4x64_epi64(pairs, 0xd8));
        }
#else
        for (int lane = 0; lane < LANES; ++lane) sums[lane] = 0;
        for (int c = 0; c < n; ++c)
            for (int lane = 0; lane < LANES; ++lane)
                for (int d = 0; d < 4; ++d)
                    sums[lane] += static_cast<std::int32_t>(static_cast<std::int8_t>(group[64 * c + 4 * lane + d])) *
                                  q.codes[4 * c + d];
#endif
        Sixteen found;
        for (int lane = 0; lane < LANES; ++lane)
            found.values[lane] = static_cast<float>(sums[lane]) * (SCALES[scales[lane]] * q.scale);
        return found;
    }
#endif
};

// fp16 and fp32: each lane sums its dimensions one after another.
template <class Value>
inline Sixteen float_group(const std::uint8_t *group, int dim, const QueryVector &q) {
    const Value *values = reinterpret_cast<const Value *>(group);
#if COIL_ISA == 5
    __m512 sum = _mm512_setzero_ps();
    for (int d = 0; d < dim; ++d) {
        __m512 v;
        if constexpr (sizeof(Value) == 2)
            v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(values + LANES * d)));
        else
            v = _mm512_loadu_ps(reinterpret_cast<const float *>(values + LANES * d));
        sum = _mm512_add_ps(sum, _mm512_mul_ps(v, _mm512_set1_ps(q.exact[d])));
    }
    return {sum};
#else
    Sixteen found;
    float *sums = found.values;
#if COIL_ISA == 2
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int d = 0; d < dim; ++d)
        for (int p = 0; p < 2; ++p) {
            __m256 v;
            if constexpr (sizeof(Value) == 2)
                v = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values + LANES * d + 8 * p)));
            else
                v = _mm256_loadu_ps(reinterpret_cast<const float *>(values + LANES * d + 8 * p));
            sum[p] = _mm256_add_ps(sum[p], _mm256_mul_ps(v, _mm256_set1_ps(q.exact[d])));
        }
    _mm256_store_ps(sums, sum[0]);
    _mm256_store_ps(sums + 8, sum[1]);
#else
    for (int lane = 0; lane < LANES; ++lane) sums[lane] = 0.0f;
    for (int d = 0; d < dim; ++d)
        for (int lane = 0; lane < LANES; ++lane) {
            float v;
            if constexpr (sizeof(Value) == 2)
                v = half_to_float(values[LANES * d + lane]);
            else
                v = values[LANES * d + lane];
            sums[lane] += v * q.exact[d];
        }
#endif
    return found;
#endif
}

// The last group may have fewer lanes, and the last quad of int8 fewer dimensions: copied into a full one.
inline const std::uint8_t *whole_group(const Vectors &lists, std::int64_t group, std::uint8_t *copy) {
    const int size = bytes_of(lists.kind), width = lists.kind == Kind::int8 ? 4 : 1;
    const std::uint8_t *base = lists.data + group * LANES * lists.dim * size;
    const int lanes = static_cast<int>(std::min<std::int64_t>(LANES, lists.count - group * LANES));
    if (lanes == LANES && lists.dim % width == 0) return base;
    std::memset(copy, 0, static_cast<std::size_t>((lists.dim + width - 1) / width * width) * LANES * size);
    for (int begin = 0; begin < lists.dim; begin += width) {
        const int here = std::min(width, lists.dim - begin);
        for (int lane = 0; lane < lanes; ++lane)
            std::memcpy(copy + (begin * LANES + lane * width) * size, base + (begin * lanes + lane * here) * size,
                        static_cast<std::size_t>(here) * size);
    }
    return copy;
}

}  // namespace
}  // namespace coil
