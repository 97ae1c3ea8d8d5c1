// One pass over an inverted list: dot product, maximum per document, accumulation (eq. 4 of the paper).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace coil {

// vectors  [mentions, dim]  the list's vectors, mentions of one document side by side
// ordinals [mentions]       non-decreasing document ordinals
// scores   [documents]      receives max_j q.v_j of each document in the list, floored at 0 if asked
inline void scan_list(const float *vectors, const std::int32_t *ordinals, std::size_t mentions,
                      std::size_t dim, const float *query, bool floor_at_zero, float *scores) {
    std::size_t row = 0;
    while (row < mentions) {
        const std::int32_t ordinal = ordinals[row];
        bool first = true;
        float best = 0.0f;
        for (; row < mentions && ordinals[row] == ordinal; ++row) {
            const float *vector = vectors + row * dim;
            float dot = 0.0f;
            for (std::size_t d = 0; d < dim; ++d) dot += vector[d] * query[d];
            best = first ? dot : std::max(best, dot);
            first = false;
        }
        scores[ordinal] += floor_at_zero ? std::max(best, 0.0f) : best;
    }
}

}  // namespace coil
