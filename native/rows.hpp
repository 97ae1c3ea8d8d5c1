// Rows one after another: sentence vectors, and what their heads say about them.
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

// What each row can score at most: its list score, the product of the heads (the first dimensions), and the product
// of the lengths of the tails. Heads stand in groups of sixteen rows as mentions do, the last one filled up.
void bound_rows(const Heads &heads, std::int64_t begin, std::int64_t end, const QueryVector &q, const std::int64_t *scores,
                std::int64_t needed, float length, float *most, std::int64_t *looked_at) {
    const float none = -std::numeric_limits<float>::infinity();
    const float slack = (q.norm * 2e-4f + q.code_error) * length;  // products are rounded, and so is the query
    const float off = q.head_norm * 2.0f;  // sixteen roundings of half a step each are at most two steps long
    for (std::int64_t group = begin / LANES; group * LANES < end; ++group) {
        const std::int64_t start = group * LANES, from = std::max(start, begin), to = std::min(start + LANES, end);
        const std::uint8_t *data = heads.data + group * 64 * heads.chunks;
#if COIL_ISA == 5
        if (to - from == LANES) {
            const std::int64_t *sixteen = scores + (from - begin);
            const __m512i least = _mm512_set1_epi64(needed), first = _mm512_loadu_si512(sixteen), second = _mm512_loadu_si512(sixteen + 8);
            const unsigned open = _mm512_cmpge_epi64_mask(first, least) | static_cast<unsigned>(_mm512_cmpge_epi64_mask(second, least)) << 8;
            if (!open) {
                _mm512_storeu_ps(most + (from - begin), _mm512_set1_ps(none));
                continue;
            }
            *looked_at += LANES;
            const __m512i sign = _mm512_set1_epi8(-128);
            __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
            for (int c = 0; c < heads.chunks; ++c) {
                __builtin_prefetch(data + 4 * 64 * heads.chunks + 64 * c);
                std::int32_t h, l;
                std::memcpy(&h, q.high.data() + 4 * c, 4);
                std::memcpy(&l, q.low.data() + 4 * c, 4);
                const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(data + 64 * c), sign);
                high = _mm512_dpbusd_epi32(high, v, _mm512_set1_epi32(h));
                low = _mm512_dpbusd_epi32(low, v, _mm512_set1_epi32(l));
            }
            const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low), _mm512_set1_epi32(128 * q.head_sum));
            const __m512 scale = scales_of(heads.scales + from);
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(q.scale)));
            const __m512 error = _mm512_add_ps(_mm512_mul_ps(scale, _mm512_set1_ps(off)), _mm512_set1_ps(slack));
            const __m512 tail = _mm512_mul_ps(_mm512_loadu_ps(heads.tails + from), _mm512_set1_ps(q.tail_norm));
            const __m512 score = _mm512_mul_ps(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(first)), _mm512_cvtepi64_ps(second), 1),
                                               _mm512_set1_ps(1.0f / GRID));
            const __m512 room = _mm512_mul_ps(_mm512_add_ps(_mm512_abs_ps(score), _mm512_abs_ps(product)), _mm512_set1_ps(1e-6f));
            const __m512 whole = _mm512_add_ps(_mm512_add_ps(score, product), _mm512_add_ps(_mm512_add_ps(error, room), tail));
            _mm512_storeu_ps(most + (from - begin), _mm512_mask_mov_ps(_mm512_set1_ps(none), static_cast<__mmask16>(open), whole));
            continue;
        }
#endif
        for (std::int64_t row = from; row < to; ++row) {
            if (scores[row - begin] < needed) {
                most[row - begin] = none;
                continue;
            }
            ++*looked_at;
            std::int32_t sum = 0;
            for (int c = 0; c < heads.chunks; ++c)
                for (int d = 0; d < 4; ++d)
                    sum += static_cast<std::int32_t>(static_cast<std::int8_t>(data[64 * c + 4 * (row - start) + d])) *
                           q.codes[static_cast<std::size_t>(4 * c + d)];
            const float product = static_cast<float>(sum) * (SCALES[heads.scales[row]] * q.scale);
            const float score = static_cast<float>(scores[row - begin]) * (1.0f / GRID);
            const float error = SCALES[heads.scales[row]] * off + slack;
            most[row - begin] = score + product + error + (std::abs(score) + std::abs(product)) * 1e-6f + heads.tails[row] * q.tail_norm;
        }
    }
}

}  // namespace
}  // namespace coil
