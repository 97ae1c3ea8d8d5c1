// Sixteen floats in one register, with AVX-512 and VNNI. simd_portable.hpp documents the functions.
#pragma once
#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "views.hpp"

namespace coil {
namespace {

struct Avx512 {
    using Floats = __m512;
    using Carry = __m512;  // in its last lane

    static Floats spread(float value) { return _mm512_set1_ps(value); }
    static Floats load(const float *at) { return _mm512_loadu_ps(at); }
    static Floats load(const std::uint16_t *halves) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(halves)));
    }
    static void store(float *to, Floats a) { _mm512_storeu_ps(to, a); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
    static float largest(Floats a) { return _mm512_reduce_max_ps(a); }
    static Floats only(unsigned mask, Floats a, float other) {
        return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), spread(other), a);
    }

    // Scale byte c means 2^((c - 160) / 8): one of sixteen values, selected by its lower four bits, times a power of four, which is
    // added to the exponent. `steps` are the first sixteen scales, or these times a factor.
    static __m512 scales_of(const std::uint8_t *codes, __m512 steps) {
        const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
        const __m512i fours = _mm512_and_si512(_mm512_slli_epi32(c, 20), _mm512_set1_epi32(0x0f000000));
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(_mm512_permutexvar_ps(c, steps)), fours));
    }

    static __m512i four_codes(const std::vector<std::int8_t> &codes, int quad) {
        std::int32_t four;
        std::memcpy(&four, codes.data() + 4 * quad, 4);
        return _mm512_set1_epi32(four);
    }

    template <int QUADS>
    struct Int8Group {
        const QueryVector &q;
        int quads;
        __m512i high[QUADS ? QUADS : 1], low[QUADS ? QUADS : 1], shift;
        __m512 steps;  // the first sixteen scales, times the query's
        Int8Group(const QueryVector &vector, int n) : q(vector), quads(n) {
            // Values are shifted by 128 to be unsigned; 32-bit sums wrap around and back again.
            shift = _mm512_set1_epi32(static_cast<std::int32_t>(0u - 128u * static_cast<std::uint32_t>(q.code_sum)));
            steps = _mm512_mul_ps(_mm512_loadu_ps(SCALES), _mm512_set1_ps(q.scale));
            for (int c = 0; c < QUADS; ++c) {
                high[c] = four_codes(q.high, c);
                low[c] = four_codes(q.low, c);
            }
        }
        static void add_quad(const std::uint8_t *quad, __m512i h, __m512i l, __m512i &sum_high, __m512i &sum_low) {
            const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(quad), _mm512_set1_epi8(-128));
            sum_high = _mm512_dpbusd_epi32(sum_high, v, h);
            sum_low = _mm512_dpbusd_epi32(sum_low, v, l);
        }
        // Written out quad by quad, so that the compiler keeps the query in registers.
        template <int... C>
        void add_quads(const std::uint8_t *group, __m512i &sum_high, __m512i &sum_low, std::integer_sequence<int, C...>) const {
            (add_quad(group + 64 * C, high[C], low[C], sum_high, sum_low), ...);
        }
        Floats operator()(const std::uint8_t *group, const std::uint8_t *scales) const {
            __m512i sum_high = _mm512_setzero_si512(), sum_low = shift;
            if constexpr (QUADS > 0) {
                add_quads(group, sum_high, sum_low, std::make_integer_sequence<int, QUADS>());
            } else {
                for (int c = 0; c < quads; ++c) add_quad(group + 64 * c, four_codes(q.high, c), four_codes(q.low, c), sum_high, sum_low);
            }
            const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sum_high, 7), sum_low);
            return _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scales_of(scales, steps));
        }
    };

    template <int LINES>
    static void int8_rows(const std::uint8_t *const rows[4], int dim, const QueryVector &q, std::int32_t *sums) {
        const __m512i sign = _mm512_set1_epi8(-128);
        __m512i part[4];
        for (int r = 0; r < 4; ++r) {
            __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
            const auto add = [&](int d, __m512i values) {
                const __m512i v = _mm512_xor_si512(values, sign);
                high = _mm512_dpbusd_epi32(high, v, _mm512_loadu_si512(q.high.data() + d));
                low = _mm512_dpbusd_epi32(low, v, _mm512_loadu_si512(q.low.data() + d));
            };
            int d = 0;
            if constexpr (LINES > 0) {
                for (; d < 64 * LINES; d += 64) add(d, _mm512_loadu_si512(rows[r] + d));
            } else {
                for (; d + 64 <= dim; d += 64) add(d, _mm512_loadu_si512(rows[r] + d));
                if (d < dim) add(d, _mm512_maskz_loadu_epi8((1ull << (dim - d)) - 1, rows[r] + d));
            }
            part[r] = _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
        }
        // Each of the four sums is reduced; the steps are shared.
        const __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(part[0], part[1]), _mm512_unpackhi_epi32(part[0], part[1]));
        const __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(part[2], part[3]), _mm512_unpackhi_epi32(part[2], part[3]));
        const __m512i z = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
        const __m256i w = _mm256_add_epi32(_mm512_castsi512_si256(z), _mm512_extracti64x4_epi64(z, 1));
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
        const __m128i shift = _mm_set1_epi32(static_cast<std::int32_t>(128u * static_cast<std::uint32_t>(q.code_sum)));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(sums), _mm_sub_epi32(four, shift));
    }

    // Without branches: the best value of each run moves along its lanes, so that its last lane has the best. A start at lane i
    // ends the run of lane i - 1.
    static void end_runs(Floats found, unsigned starts, Carry &carry, float *out) {
        carry = _mm512_permutexvar_ps(_mm512_set1_epi32(15), carry);
        found = _mm512_mask_max_ps(found, static_cast<__mmask16>(~starts & 1u), found, carry);
        // Lane i takes the value of lane i - distance if no run starts in between.
        const auto take = [&](unsigned mask, auto distance) {
            const __m512i moved = _mm512_alignr_epi32(_mm512_castps_si512(found), _mm512_castps_si512(found), 16 - distance.value);
            found = _mm512_mask_max_ps(found, static_cast<__mmask16>(mask), found, _mm512_castsi512_ps(moved));
        };
        const unsigned one = ~starts & 0xfffeu, two = one & one << 1, four = two & two << 2;
        take(one, std::integral_constant<int, 1>());
        take(two, std::integral_constant<int, 2>());
        if (__builtin_expect(four != 0, 0)) {
            take(four, std::integral_constant<int, 4>());
            take(four & four << 4, std::integral_constant<int, 8>());
        }
        const __m512i before = _mm512_alignr_epi32(_mm512_castps_si512(found), _mm512_castps_si512(carry), 15);
        _mm512_storeu_ps(out, _mm512_castsi512_ps(_mm512_maskz_compress_epi32(static_cast<__mmask16>(starts), before)));
        carry = found;
    }
    static Carry carry(float value) { return spread(value); }
    static float last(Carry carry) { return _mm512_cvtss_f32(_mm512_permutexvar_ps(_mm512_set1_epi32(15), carry)); }

    static void places(unsigned mask, std::uint32_t first, std::uint32_t *out) {
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i all = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<std::int32_t>(first)));
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), all));
    }

    static Floats factors(const std::uint32_t *ends, const std::uint16_t *rows, const std::uint32_t *lengths, float c0, float c1) {
        const __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(rows)));
        const __m512 length = _mm512_cvtepi32_ps(_mm512_i32gather_epi32(at, lengths, 4));
        const __m512 tf = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(ends), _mm512_loadu_si512(ends - 1)));
        const __m512 k = _mm512_add_ps(_mm512_set1_ps(c0), _mm512_mul_ps(_mm512_set1_ps(c1), length));
        return _mm512_div_ps(tf, _mm512_add_ps(tf, k));
    }

    static std::int64_t to_grid(float value) { return _mm_cvtss_si64(_mm_set_ss(value * GRID)); }
    static void to_grid(Floats a, std::int64_t *out) {
        const __m512 scaled = _mm512_mul_ps(a, _mm512_set1_ps(GRID));
        _mm512_storeu_si512(out, _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)));
        _mm512_storeu_si512(out + 8, _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1)));
    }

    static Floats scaled(const std::int32_t *sums, const std::uint8_t *scales, float scale) {
        const __m512 steps = _mm512_mul_ps(_mm512_loadu_ps(SCALES), _mm512_set1_ps(scale));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums)), scales_of(scales, steps));
    }
    static int count_below(const std::uint16_t *rows, std::int32_t row) {
        const __m512i wanted = _mm512_set1_epi16(static_cast<short>(row));
        return __builtin_popcount(_mm512_cmplt_epu16_mask(_mm512_loadu_si512(rows), wanted));
    }
    static Floats from_grid(const std::int64_t *scores) {
        const __m256 low = _mm512_cvtepi64_ps(_mm512_loadu_si512(scores)), high = _mm512_cvtepi64_ps(_mm512_loadu_si512(scores + 8));
        return _mm512_mul_ps(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1), spread(1.0f / GRID));
    }
    static Floats bytes(const std::uint8_t *at) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))));
    }
    static Floats size(Floats a) { return _mm512_abs_ps(a); }
    static unsigned reach(Floats a, float threshold) { return _mm512_cmp_ps_mask(a, spread(threshold), _CMP_GE_OQ); }

    static unsigned reach(const std::int64_t *scores, std::int64_t threshold) {
        const __m512i bound = _mm512_set1_epi64(threshold);
        const unsigned low = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(scores), bound);
        const unsigned high = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(scores + 8), bound);
        return low | high << 8;
    }
};

}  // namespace
}  // namespace coil
