// One list: the maximum of the products per row, added to the scores of the rows.
#pragma once
#include <limits>
#include <type_traits>

#include "groups.hpp"

namespace coil {
namespace {

// Rows of a list ascend, so the mentions of a row stand side by side. The best of the last row seen stays in the
// state until another row comes.
inline void flush(ScanState &state, std::int32_t first_row, std::int64_t *scores) {
    if (state.row >= 0) scores[state.row - first_row] += to_grid(state.best);
    state = ScanState{};
}

inline void add_lanes(const float *found, const std::uint16_t *rows, int from, int to, bool floor, std::int32_t first_row,
                      std::int64_t *scores, ScanState &state) {
    for (int lane = from; lane < to; ++lane) {
        const float value = floor ? std::max(found[lane], 0.0f) : found[lane];
        if (rows[lane] == state.row) {
            state.best = std::max(state.best, value);
        } else {
            flush(state, first_row, scores);
            state.row = rows[lane];
            state.best = value;
        }
    }
}

#if COIL_ISA == 5
// Groups are taken in waves: all products, then the best of each row, then the sums. Each of the three loops has few
// values that wait for each other, which a processor can overlap far better than one long chain a group.
constexpr int WAVE = 8;
constexpr int AHEAD = 28;  // groups; fetched into the second cache between the products, when memory would be idle

// The best of every row that ends in a wave.
struct Ended {
    alignas(64) float best[(WAVE + 2) * LANES];
    alignas(64) std::int32_t rows[(WAVE + 2) * LANES];
    int count = 0;
};

// A group without branches: the best of each row moves to the row's last lane; lanes that end a row are packed. The row of
// the last lane waits for the next group.
inline void end_rows(__m512 found, const std::uint16_t *rows, std::int32_t first_row, __m512i &last_row, __m512 &last_best,
                     Ended &ended) {
    const __m512i row = _mm512_sub_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(rows))), _mm512_set1_epi32(first_row));
    // Lane i takes from lane i - 1, then i - 2, ... as long as that is the same row; rows are never -1.
    const __m512i none = _mm512_set1_epi32(-1);
#define COIL_TAKE(distance)                                                                                       \
    {                                                                                                             \
        const __mmask16 same = _mm512_cmpeq_epi32_mask(row, _mm512_alignr_epi32(row, none, 16 - distance));       \
        const __m512i moved = _mm512_alignr_epi32(_mm512_castps_si512(found), none, 16 - distance);               \
        found = _mm512_mask_max_ps(found, same, found, _mm512_castsi512_ps(moved));                               \
    }
    COIL_TAKE(1)
    COIL_TAKE(2)
    if (__builtin_expect(_mm512_cmpeq_epi32_mask(row, _mm512_alignr_epi32(row, none, 12)) != 0, 0)) {
        COIL_TAKE(4)
        COIL_TAKE(8)
    }
#undef COIL_TAKE
    const __mmask16 goes_on = _mm512_cmpeq_epi32_mask(row, last_row);
    found = _mm512_mask_max_ps(found, goes_on, found, last_best);
    // The row that was waiting is done, unless this group goes on with it.
    _mm_store_ss(ended.best + ended.count, _mm512_castps512_ps128(last_best));
    ended.rows[ended.count] = _mm512_cvtsi512_si32(last_row);
    ended.count += 1 - (goes_on & 1);
    const __mmask16 last = _mm512_cmpneq_epi32_mask(row, _mm512_alignr_epi32(row, row, 1)) & 0x7fff;
    _mm512_storeu_ps(ended.best + ended.count, _mm512_maskz_compress_ps(last, found));
    _mm512_storeu_si512(ended.rows + ended.count, _mm512_maskz_compress_epi32(last, row));
    ended.count += __builtin_popcount(last);
    const __m512i end = _mm512_set1_epi32(15);
    last_row = _mm512_permutexvar_epi32(end, row);
    last_best = _mm512_permutexvar_ps(end, found);
}

inline void add_ended(Ended &ended, std::int64_t *scores) {
    // Filled up to a multiple of eight with what adds nothing.
    _mm256_storeu_ps(ended.best + ended.count, _mm256_setzero_ps());
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(ended.rows + ended.count), _mm256_set1_epi32(ended.rows[0]));
    alignas(64) std::int64_t values[(WAVE + 2) * LANES];
    for (int i = 0; i < ended.count; i += 8)
        _mm512_store_si512(values + i, _mm512_cvtps_epi64(_mm256_mul_ps(_mm256_load_ps(ended.best + i), _mm256_set1_ps(GRID))));
    asm volatile("" ::: "memory");  // read back from memory: taking registers apart is slower
    for (int i = 0; i < ended.count; i += 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) scores[ended.rows[i + j]] += values[i + j];
    }
    ended.count = 0;
}
#endif

template <int BYTES, class Products>  // of a group; 0: known only at run time
inline void scan_groups(const Vectors &lists, const std::uint16_t *rows, std::int64_t begin, std::int64_t end, bool floor,
                        std::int32_t first_row, std::int64_t *scores, ScanState &state, Products products) {
    alignas(64) std::uint8_t copy[MOST_DIM * LANES * 4];
    alignas(64) float found[LANES];
    std::uint8_t scales[LANES] = {};
    const auto part = [&](std::int64_t group) {  // a group of which not every lane belongs to the list
        const std::int64_t start = group * LANES;
        const std::uint8_t *scale = lists.scales == nullptr ? nullptr : lists.scales + start;
        if (scale != nullptr && lists.count - start < LANES) {
            std::memcpy(scales, scale, static_cast<std::size_t>(lists.count - start));
            scale = scales;
        }
        products(whole_group(lists, group, copy), scale).store(found);
        const int from = static_cast<int>(std::max<std::int64_t>(begin - start, 0));
        const int to = static_cast<int>(std::min<std::int64_t>(end - start, LANES));
        add_lanes(found, rows + start, from, to, floor, first_row, scores, state);
    };
    std::int64_t group = begin / LANES;
    const std::int64_t stop = end / LANES;  // groups before this one end within the list
    if (begin % LANES != 0 || group == stop) part(group++);
#if COIL_ISA == 5
    if (group < stop) {
        const std::int64_t bytes = BYTES ? BYTES : static_cast<std::int64_t>(LANES) * lists.dim * bytes_of(lists.kind);
        const bool even = BYTES || lists.dim % (lists.kind == Kind::int8 ? 4 : 1) == 0;
        if (state.row < 0) {  // something that adds nothing to a row that is there
            state.row = rows[group * LANES];
            state.best = floor ? 0.0f : -std::numeric_limits<float>::infinity();
        }
        __m512i last_row = _mm512_set1_epi32(state.row - first_row);
        __m512 last_best = _mm512_set1_ps(state.best);
        const __m512 least = _mm512_set1_ps(floor ? 0.0f : -std::numeric_limits<float>::infinity());
        alignas(64) float wave[WAVE * LANES];
        Ended ended;
        while (group < stop) {
            const int here = static_cast<int>(std::min<std::int64_t>(WAVE, stop - group));
            for (int g = 0; g < here; ++g) {
                const std::uint8_t *scale = lists.scales == nullptr ? nullptr : lists.scales + (group + g) * LANES;
                const std::uint8_t *data = even ? lists.data + (group + g) * bytes : whole_group(lists, group + g, copy);
                _mm512_store_ps(wave + LANES * g, _mm512_max_ps(products(data, scale).values, least));
            }
            for (int g = 0; g < here; ++g) {
                const std::uint8_t *ahead = lists.data + (group + g + AHEAD) * bytes;
                for (std::int64_t at = 0; at < bytes && at < 1024; at += 64) __builtin_prefetch(ahead + at, 0, 2);
                __builtin_prefetch(rows + (group + g + AHEAD) * LANES, 0, 2);
                if (lists.scales != nullptr) __builtin_prefetch(lists.scales + (group + g + AHEAD) * LANES, 0, 2);
                end_rows(_mm512_load_ps(wave + LANES * g), rows + (group + g) * LANES, first_row, last_row, last_best, ended);
            }
            if (ended.count) add_ended(ended, scores);
            group += here;
        }
        state.row = _mm512_cvtsi512_si32(last_row) + first_row;
        state.best = _mm512_cvtss_f32(last_best);
    }
#else
    for (; group < stop; ++group) part(group);
#endif
    if (group * LANES < end) part(group);
}

void scan(const Vectors &lists, const std::uint16_t *rows, std::int64_t begin, std::int64_t end, const QueryVector &q,
          bool floor, std::int32_t first_row, std::int64_t *scores, ScanState &state) {
    if (begin >= end) return;
    if (lists.kind == Kind::fp32) {
        scan_groups<0>(lists, rows, begin, end, floor, first_row, scores, state,
                    [&](const std::uint8_t *group, const std::uint8_t *) { return float_group<float>(group, lists.dim, q); });
    } else if (lists.kind == Kind::fp16) {
        scan_groups<0>(lists, rows, begin, end, floor, first_row, scores, state,
                    [&](const std::uint8_t *group, const std::uint8_t *) { return float_group<std::uint16_t>(group, lists.dim, q); });
    } else {
        const int quads = (lists.dim + 3) / 4;
        const auto run = [&](auto bytes, const auto &kernel) {
            scan_groups<bytes.value>(
                lists, rows, begin, end, floor, first_row, scores, state,
                [kernel, quads, &q](const std::uint8_t *group, const std::uint8_t *scales) { return kernel(group, scales, quads, q); });
        };
        if (lists.dim == 32)
            run(std::integral_constant<int, 512>(), Int8Group<8>(q));
        else if (lists.dim == 8)
            run(std::integral_constant<int, 128>(), Int8Group<2>(q));
        else
            run(std::integral_constant<int, 0>(), Int8Group<0>(q));
    }
}

}  // namespace
}  // namespace coil
