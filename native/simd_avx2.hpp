// Sixteen floats at a time in two registers, with AVX2 and F16C. simd_portable.hpp documents the functions.
#pragma once
#include <immintrin.h>

#include "simd_portable.hpp"

namespace coil {
namespace {

struct Avx2 : Portable {
    struct Floats {
        __m256 low, high;
    };

    static Floats spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Floats load(const float *at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
    static Floats load(const std::uint16_t *halves) {
        const __m128i *at = reinterpret_cast<const __m128i *>(halves);
        return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
    }
    static void store(float *to, Floats a) {
        _mm256_storeu_ps(to, a.low);
        _mm256_storeu_ps(to + 8, a.high);
    }
    static Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static Floats multiply(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    static Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
    static float largest(Floats a) {
        Portable::Floats lanes;
        store(lanes.lane, a);
        return Portable::largest(lanes);
    }
    static Floats only(unsigned mask, Floats a, float other) {
        float lane[LANES];
        store(lane, a);
        for (int i = 0; i < LANES; ++i)
            if (!(mask >> i & 1)) lane[i] = other;
        return load(lane);
    }

    template <int QUADS>
    struct Int8Group {
        const QueryVector &q;
        int quads;
        Int8Group(const QueryVector &vector, int n) : q(vector), quads(QUADS ? QUADS : n) {}
        Floats operator()(const std::uint8_t *group, const std::uint8_t *scales) const {
            __m256i part[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
            for (int c = 0; c < quads; ++c) {
                std::int64_t four;
                std::memcpy(&four, q.codes.data() + 4 * c, 8);
                const __m256i codes = _mm256_set1_epi64x(four);
                for (int p = 0; p < 4; ++p) {  // four mentions at a time, their values widened to 16 bits
                    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(group + 64 * c + 16 * p));
                    part[p] = _mm256_add_epi32(part[p], _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), codes));
                }
            }
            float scale[LANES];
            for (int i = 0; i < LANES; ++i) scale[i] = SCALES[scales[i]] * q.scale;
            const auto joined = [](__m256i a, __m256i b) {
                return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8));
            };
            return multiply({joined(part[0], part[1]), joined(part[2], part[3])}, load(scale));
        }
    };

    template <int LINES>
    static void int8_rows(const std::uint8_t *const rows[4], int dim, const QueryVector &q, std::int32_t *sums) {
        for (int r = 0; r < 4; ++r) {
            __m256i parts = _mm256_setzero_si256();
            int d = 0;
            for (; d + 16 <= dim; d += 16) {
                const __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(rows[r] + d)));
                const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(q.codes.data() + d));
                parts = _mm256_add_epi32(parts, _mm256_madd_epi16(v, c));
            }
            std::int32_t eight[8];
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(eight), parts);
            std::int32_t sum = 0;
            for (const std::int32_t part : eight) sum += part;
            for (; d < dim; ++d) sum += static_cast<std::int32_t>(static_cast<std::int8_t>(rows[r][d])) * q.codes[d];
            sums[r] = sum;
        }
    }

    static void end_runs(Floats found, unsigned starts, Carry &carry, float *out) {
        Portable::Floats lanes;
        store(lanes.lane, found);
        Portable::end_runs(lanes, starts, carry, out);
    }

    static Floats factors(const std::uint32_t *ends, const std::uint16_t *rows, const std::uint32_t *lengths, float c0, float c1) {
        const auto eight = [&](int from) {
            const __m256i at = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(rows + from)));
            const __m256i length = _mm256_i32gather_epi32(reinterpret_cast<const int *>(lengths), at, 4);
            const __m256i end = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(ends + from));
            const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(ends + from - 1));
            const __m256 tf = _mm256_cvtepi32_ps(_mm256_sub_epi32(end, before));
            const __m256 k = _mm256_add_ps(_mm256_set1_ps(c0), _mm256_mul_ps(_mm256_set1_ps(c1), _mm256_cvtepi32_ps(length)));
            return _mm256_div_ps(tf, _mm256_add_ps(tf, k));
        };
        return {eight(0), eight(8)};
    }

    static std::int64_t to_grid(float value) { return _mm_cvtss_si64(_mm_set_ss(value * GRID)); }
    static void to_grid(Floats a, std::int64_t *out) {
        float lane[LANES];
        store(lane, a);
        for (int i = 0; i < LANES; ++i) out[i] = to_grid(lane[i]);
    }

    static Floats scaled(const std::int32_t *sums, const std::uint8_t *scales, float scale) {
        return load(Portable::scaled(sums, scales, scale).lane);
    }
    static Floats from_grid(const std::int64_t *scores) { return load(Portable::from_grid(scores).lane); }
    static Floats bytes(const std::uint8_t *at) {
        const auto eight = [&](int from) {
            return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at + from))));
        };
        return {eight(0), eight(8)};
    }
    static Floats size(Floats a) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
    }
    static unsigned reach(Floats a, float threshold) {
        const __m256 bound = _mm256_set1_ps(threshold);
        const auto eight = [&](__m256 b) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(b, bound, _CMP_GE_OQ))); };
        return eight(a.low) | eight(a.high) << 8;
    }

    static unsigned reach(const std::int64_t *scores, std::int64_t threshold) {
        const __m256i bound = _mm256_set1_epi64x(threshold);
        unsigned below = 0;
        for (int i = 0; i < 4; ++i) {
            const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(scores + 4 * i));
            below |= static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(bound, four)))) << (4 * i);
        }
        return ~below & 0xffffu;
    }
};

}  // namespace
}  // namespace coil
