// A line: a list with all query tokens that use it. What its postings add can be counted (an upper bound from term frequency,
// row length and the length of the longest vector) or scored (exactly, from the vectors).
#pragma once
#include <cmath>

#include "bounds.hpp"
#include "ranges.hpp"

namespace coil {

constexpr float RAISED = 1.0f + 2e-4f;  // more than the rounding error of a product of MOST_DIM terms

// One posting of a line that was looked up.
struct Posting {
    std::int64_t begin, end;  // mentions
    std::int64_t block;       // among all blocks; -1 if the list is short
    float factor;
};

class Line {
  public:
    Line(const SegmentView &segment, const Query &query, const Part &part) : list(part.list), segment_(segment), query_(query) {
        norm_ = segment.list_norms[part.place];
    }

    void add(const Part &part) {
        tokens.push_back(part.token);
        bound += part.bound;
        base_ += part.token->base * static_cast<double>(part.token->multiple);
        length_ += static_cast<double>(part.token->vector.norm);
        // If the vectors can add more than the base, the bounds of blocks are worth using.
        by_block_ = list.first_block >= 0 && query_.n_t && length_ * norm_ > base_;
    }

    List list;
    std::vector<const QueryToken *> tokens;
    std::int64_t bound = 0;

    // Whether counting gives the exact score.
    bool is_counted_exactly() const { return query_.n_t == 0; }

    // Adds what postings [from, to) count, or subtracts it again.
    void count(const Kernels &kernels, std::int64_t from, std::int64_t to, std::int64_t first_row, std::int64_t *scores, bool away) const {
        for (std::int64_t at = from, next; at < to; at = next) {
            next = step_end(list, at, by_block_ ? BLOCK : STEP, to);
            const std::int64_t block = list.first_block >= 0 ? list.first_block + (at - list.first) / BLOCK : -1;
            kernels.add_list(segment_, list.between(segment_, at, next), term(counted_base(block), away), first_row, scores);
        }
    }

    // The posting at a position.
    Posting posting(std::int64_t place) const {
        const std::int64_t block = list.first_block >= 0 ? list.first_block + (place - list.first) / BLOCK : -1;
        const std::int64_t begin = list.mention(segment_, place), end = list.next_start(segment_, begin);
        float factor = 1.0f;
        if (query_.saturation.weighted) {
            const float tf = static_cast<float>(static_cast<std::int32_t>(end - begin));
            const float length = static_cast<float>(static_cast<std::int32_t>(segment_.row_lengths[segment_.posting_rows[place]]));
            factor = tf / (tf + (query_.saturation.c0 + query_.saturation.c1 * length));
        }
        return {begin, end, block, factor};
    }

    // What `count` adds for one posting, bit-identical.
    std::int64_t counted(const Posting &posting) const {
        return grid(posting.factor, std::max(counted_base(posting.block), 0.0f)) * multiple();
    }

    // What one posting adds for a token, given its best product.
    std::int64_t scored(const Posting &posting, const QueryToken &token, float best) const {
        return grid(posting.factor, std::max(token.base + best, 0.0f)) * token.multiple;
    }

  private:
    std::int64_t multiple() const { return is_counted_exactly() ? tokens[0]->multiple : 1; }

    float counted_base(std::int64_t block) const {
        if (is_counted_exactly()) return tokens[0]->base;
        const float norm = by_block_ ? segment_.block_norms[block] : norm_;
        return static_cast<float>(base_ + length_ * norm) * RAISED;
    }

    Term term(float base, bool away) const { return {nullptr, base, away ? -multiple() : multiple(), true, query_.saturation}; }

    std::int64_t grid(float factor, float fit) const {
        const float part = query_.saturation.weighted ? factor * fit : fit;
        return std::llrint(part * GRID);
    }

    const SegmentView &segment_;
    const Query &query_;
    float norm_ = 0.0f;
    double base_ = 0.0, length_ = 0.0;
    bool by_block_ = false;
};

// The lines of a query in a segment, in the order of its parts: largest bound of a token first.
inline std::vector<Line> lines_of(const SegmentView &segment, const Query &query, const Parts &parts) {
    std::vector<Line> lines;
    for (const Part &part : parts) {
        auto found = std::find_if(lines.begin(), lines.end(), [&](const Line &line) { return line.list.first == part.list.first; });
        if (found == lines.end()) {
            lines.emplace_back(segment, query, part);
            found = lines.end() - 1;
        }
        found->add(part);
    }
    return lines;
}

}  // namespace coil
