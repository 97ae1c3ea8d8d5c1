// Rows one after another: sentence vectors, and what their sketches say about them.
#pragma once
#include <limits>

#include "groups.hpp"

namespace coil {
namespace {

inline float scaled(std::int32_t sum, const Vectors &rows, std::int64_t row, const QueryVector &q) {
    return static_cast<float>(sum) * (SCALES[rows.scales[row]] * q.scale);
}

inline std::int32_t int8_row(const std::int8_t *values, int dim, const QueryVector &q) {
#if COIL_ISA == 5
    const __m512i sign = _mm512_set1_epi8(-128);
    __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
    for (int d = 0; d < dim; d += 64) {
        const int left = dim - d;
        const __mmask64 mask = left >= 64 ? ~0ull : (1ull << left) - 1;
        const __m512i v = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, values + d), sign);
        high = _mm512_dpbusd_epi32(high, v, _mm512_loadu_si512(q.high.data() + d));
        low = _mm512_dpbusd_epi32(low, v, _mm512_loadu_si512(q.low.data() + d));
    }
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(_mm512_reduce_add_epi32(sum)) -
                                     128u * static_cast<std::uint32_t>(q.code_sum));
#else
    std::int32_t sum = 0;
    int d = 0;
#if COIL_ISA == 2
    __m256i parts = _mm256_setzero_si256();
    for (; d + 16 <= dim; d += 16) {
        const __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values + d)));
        const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(q.codes.data() + d));
        parts = _mm256_add_epi32(parts, _mm256_madd_epi16(v, c));
    }
    alignas(32) std::int32_t eight[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(eight), parts);
    for (const std::int32_t part : eight) sum += part;
#endif
    for (; d < dim; ++d) sum += static_cast<std::int32_t>(values[d]) * q.codes[d];
    return sum;
#endif
}

// Sixteen partial sums, then halves added to halves.
template <class Value>
inline float float_row(const Value *values, int dim, const QueryVector &q) {
    alignas(64) float sums[16] = {};
    for (int d = 0; d < dim; d += 16) {
        const int here = std::min(16, dim - d);
        for (int j = 0; j < here; ++j) {
            float v;
            if constexpr (sizeof(Value) == 2) {
#if COIL_ISA > 0
                v = _cvtsh_ss(values[d + j]);
#else
                v = half_to_float(values[d + j]);
#endif
            } else {
                v = values[d + j];
            }
            sums[j] += v * q.exact[d + j];
        }
    }
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

inline float one_row(const Vectors &rows, std::int64_t row, const QueryVector &q) {
    if (rows.kind == Kind::int8)
        return scaled(int8_row(reinterpret_cast<const std::int8_t *>(rows.data) + row * rows.dim, rows.dim, q), rows, row, q);
    if (rows.kind == Kind::fp16)
        return float_row(reinterpret_cast<const std::uint16_t *>(rows.data) + row * rows.dim, rows.dim, q);
    return float_row(reinterpret_cast<const float *>(rows.data) + row * rows.dim, rows.dim, q);
}

#if COIL_ISA == 5
// Four registers of partial sums, each summed up: the steps are shared.
inline __m128i sum_four(const __m512i sums[4]) {
    const __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
    const __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[2], sums[3]), _mm512_unpackhi_epi32(sums[2], sums[3]));
    const __m512i z = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    const __m256i w = _mm256_add_epi32(_mm512_castsi512_si256(z), _mm512_extracti64x4_epi64(z, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

// Products of 128 unsigned bytes a + b, with the query.
inline __m512i products_128(__m512i a, __m512i b, const QueryVector &q) {
    __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), a, _mm512_loadu_si512(q.high.data()));
    __m512i low = _mm512_dpbusd_epi32(_mm512_setzero_si512(), a, _mm512_loadu_si512(q.low.data()));
    high = _mm512_dpbusd_epi32(high, b, _mm512_loadu_si512(q.high.data() + 64));
    low = _mm512_dpbusd_epi32(low, b, _mm512_loadu_si512(q.low.data() + 64));
    return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

// Four rows of 128 int8, wherever they are.
inline void four_rows_128(const Vectors &rows, const std::int32_t *chosen, const QueryVector &q, std::int64_t *out) {
    const __m512i sign = _mm512_set1_epi8(-128);
    __m512i sums[4];
    for (int r = 0; r < 4; ++r) {
        const std::uint8_t *row = rows.data + 128 * static_cast<std::int64_t>(chosen[r]);
        sums[r] = products_128(_mm512_xor_si512(_mm512_loadu_si512(row), sign),
                               _mm512_xor_si512(_mm512_loadu_si512(row + 64), sign), q);
    }
    const __m128i shift = _mm_set1_epi32(static_cast<std::int32_t>(128u * static_cast<std::uint32_t>(q.code_sum)));
    alignas(16) std::int32_t whole[4];
    _mm_store_si128(reinterpret_cast<__m128i *>(whole), _mm_sub_epi32(sum_four(sums), shift));
    for (int r = 0; r < 4; ++r) out[r] = to_grid(scaled(whole[r], rows, chosen[r], q));
}
#endif

void add_rows(const Vectors &rows, std::int64_t begin, std::int64_t end, const QueryVector &q, std::int64_t *scores) {
    std::int64_t row = begin;
#if COIL_ISA == 5
    if (rows.kind == Kind::int8 && rows.dim == 128) {
        for (; row + 4 <= end; row += 4) {
            for (int line = 0; line < 8; ++line) __builtin_prefetch(rows.data + 128 * (row + 96) + 64 * line, 0, 2);
            const std::int32_t at = static_cast<std::int32_t>(row), four[4] = {at, at + 1, at + 2, at + 3};
            std::int64_t found[4];
            four_rows_128(rows, four, q, found);
            for (int r = 0; r < 4; ++r) scores[row - begin + r] += found[r];
        }
    }
#endif
    for (; row < end; ++row) scores[row - begin] += to_grid(one_row(rows, row, q));
}

void pick_rows(const Vectors &rows, const std::int32_t *chosen, std::size_t count, const QueryVector &q,
               std::int32_t first_row, std::int64_t *scores) {
    const std::int64_t bytes = static_cast<std::int64_t>(rows.dim) * bytes_of(rows.kind);
    std::size_t i = 0;
#if COIL_ISA == 5
    if (rows.kind == Kind::int8 && rows.dim == 128) {
        for (; i + 4 <= count; i += 4) {
            for (std::size_t r = i + 12; r < std::min(i + 16, count); ++r) {
                __builtin_prefetch(rows.data + 128 * static_cast<std::int64_t>(chosen[r]));
                __builtin_prefetch(rows.data + 128 * static_cast<std::int64_t>(chosen[r]) + 64);
            }
            std::int64_t found[4];
            four_rows_128(rows, chosen + i, q, found);
            for (int r = 0; r < 4; ++r) scores[chosen[i + static_cast<std::size_t>(r)] - first_row] += found[r];
        }
    }
#endif
    for (; i < count; ++i) {
        if (i + 8 < count) {
            const std::uint8_t *ahead = rows.data + chosen[i + 8] * bytes;
            for (std::int64_t at = 0; at < bytes && at < 512; at += 64) __builtin_prefetch(ahead + at);
        }
        scores[chosen[i] - first_row] += to_grid(one_row(rows, chosen[i], q));
    }
}

// What a row can score at most: its list score and the product of the lengths; where that is enough to reach the
// threshold, its list score, the product of the sketches, and the product of the lengths of the tails. Sketches stand in groups
// of sixteen rows as mentions do, the last one filled up.
std::size_t find_open(const Sketches &sketches, std::int64_t begin, std::int64_t end, const SketchQuery &q, const std::int64_t *scores,
                      float threshold, std::int32_t *places, std::int64_t *looked_at) {
    const float of_norm = q.norm * sketches.step, of_tail = q.tail_norm * sketches.step;
    const float off = q.sketch_norm * 2.0f;  // sixteen roundings of half a step each are at most two steps long
    std::size_t found = 0;
#if COIL_ISA == 5
    const __m512i sign = _mm512_set1_epi8(-128), shift = _mm512_set1_epi32(128 * q.code_sum);
    const __m512 wanted = _mm512_set1_ps(threshold), slack = _mm512_set1_ps(q.slack), little = _mm512_set1_ps(1e-6f);
    const __m512 steps = _mm512_loadu_ps(SCALES);
    __m512i high[MOST_AXES / 4], low[MOST_AXES / 4];
    for (int c = 0; c < MOST_AXES / 4; ++c) {
        std::int32_t h, l;
        std::memcpy(&h, q.high + 4 * c, 4);
        std::memcpy(&l, q.low + 4 * c, 4);
        high[c] = _mm512_set1_epi32(h);
        low[c] = _mm512_set1_epi32(l);
    }
    const auto bytes = [](const std::uint8_t *at) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))));
    };
#endif
    for (std::int64_t group = begin / LANES; group * LANES < end; ++group) {
        const std::int64_t start = group * LANES, from = std::max(start, begin), to = std::min(start + LANES, end);
        const std::uint8_t *data = sketches.data + group * 64 * sketches.quads;
#if COIL_ISA == 5
        if (to - from == LANES) {
            const std::int64_t *sixteen = scores + (from - begin);
            const __m512 score = _mm512_mul_ps(
                _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(_mm512_loadu_si512(sixteen))),
                                   _mm512_cvtepi64_ps(_mm512_loadu_si512(sixteen + 8)), 1),
                _mm512_set1_ps(1.0f / GRID));
            // The roundings of this sum are far below the slack, which is counted in twice.
            const __m512 room = _mm512_add_ps(_mm512_add_ps(score, slack), _mm512_mul_ps(_mm512_abs_ps(score), little));
            const __m512 by_norm = _mm512_add_ps(room, _mm512_mul_ps(bytes(sketches.norms + from), _mm512_set1_ps(of_norm)));
            const __mmask16 open = _mm512_cmp_ps_mask(by_norm, wanted, _CMP_GE_OQ);
            if (!open) continue;
            *looked_at += LANES;
            __m512i sum_high = _mm512_setzero_si512(), sum_low = _mm512_setzero_si512();
            for (int c = 0; c < sketches.quads; ++c) {
                const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(data + 64 * c), sign);
                sum_high = _mm512_dpbusd_epi32(sum_high, v, high[c]);
                sum_low = _mm512_dpbusd_epi32(sum_low, v, low[c]);
            }
            const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(sum_high, 7), sum_low), shift);
            const __m512 scale = scales_of(sketches.scales + from, steps);
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(q.scale)));
            const __m512 rest = _mm512_add_ps(_mm512_mul_ps(scale, _mm512_set1_ps(off)),
                                              _mm512_mul_ps(bytes(sketches.tails + from), _mm512_set1_ps(of_tail)));
            const __m512 most = _mm512_add_ps(_mm512_add_ps(room, product),
                                              _mm512_add_ps(rest, _mm512_mul_ps(_mm512_abs_ps(product), little)));
            for (unsigned mask = _mm512_mask_cmp_ps_mask(open, most, wanted, _CMP_GE_OQ); mask; mask &= mask - 1)
                places[found++] = static_cast<std::int32_t>(from - begin) + __builtin_ctz(mask);
            continue;
        }
#endif
        for (std::int64_t row = from; row < to; ++row) {
            const float score = static_cast<float>(scores[row - begin]) * (1.0f / GRID);
            const float room = score + q.slack + std::abs(score) * 1e-6f;
            if (room + static_cast<float>(sketches.norms[row]) * of_norm < threshold) continue;
            ++*looked_at;
            std::int32_t sum = 0;
            for (int d = 0; d < 4 * sketches.quads; ++d)
                sum += static_cast<std::int32_t>(static_cast<std::int8_t>(data[64 * (d / 4) + 4 * (row - start) + d % 4])) * q.codes[d];
            const float scale = SCALES[sketches.scales[row]], product = static_cast<float>(sum) * (scale * q.scale);
            const float rest = scale * off + static_cast<float>(sketches.tails[row]) * of_tail;
            places[found] = static_cast<std::int32_t>(row - begin);
            found += room + product + rest + std::abs(product) * 1e-6f >= threshold;
        }
    }
    return found;
}

}  // namespace
}  // namespace coil
