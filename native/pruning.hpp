// One query, leaving out what provably cannot be among the k best.
//
// First the lists of every range; of each range the rows that score best by them are scored to the end, which gives
// a threshold. Then the sentence vectors of those rows that can still reach it.
#pragma once
#include <cmath>

#include "ranges.hpp"

namespace coil {

constexpr std::int64_t SAMPLE = 512;      // rows of a range that tell whether heads rule out enough
constexpr std::size_t FEWEST_SEEDS = 16;  // rows of a range that are scored to the end first

// A range, and where its scores are kept between the two passes.
struct Kept {
    Range range;
    std::int64_t offset;
};

class Pruner {  // for one thread
  public:
    Pruner(const Kernels &kernels, const Options &options, const Query &query, TopK &top)
        : kernels_(kernels), options_(options), query_(query), top_(top) {}

    // The first pass over a range: its lists. `scores` and `complete` have room for its rows.
    void read_lists(const SegmentView &segment, const Range &range, const std::vector<Part> &parts,
                    const std::uint8_t *mask, std::size_t seeds, std::int64_t *scores, std::uint8_t *complete, Stats &stats) {
        const std::int64_t rows = range.end - range.begin;
        std::fill(scores, scores + rows, 0);
        const bool dense = is_dense(segment);
        std::int64_t rest = dense ? sentence_bound(segment, range) : 0;  // what is still to come can add
        for (const Part &part : parts) rest = plus(rest, part.bound);
        bool touched = false;
        for (const Part &part : parts) {
            rest -= part.bound;
            const auto [begin, end] = within(segment, part, range);
            if (begin == end) continue;
            const std::int64_t threshold = top_.threshold();
            if (threshold == NONE || rest >= threshold || end - begin < 2 * BLOCK) {
                ScanState state;
                kernels_.scan(segment.mentions, segment.mention_rows, begin, end, part.token->vector, options_.floor,
                              static_cast<std::int32_t>(range.begin), scores, state);
                kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores);
                stats.mentions_scored += end - begin;
            } else {
                scan_blocks(segment, range, part, begin, end, rest, threshold, touched, scores, stats);
            }
            touched = true;
        }
        if (!dense) {
            collect(segment, range, mask, scores);
            return;
        }
        std::fill(complete, complete + rows, 0);
        score_seeds(segment, range, mask, seeds, scores, complete, stats);
    }

    // The second pass: sentence products of the rows that can still reach the threshold.
    void read_sentences(const SegmentView &segment, const Range &range, const std::uint8_t *mask, std::int64_t *scores,
                        const std::uint8_t *complete, Stats &stats) {
        if (!is_dense(segment)) return;
        const std::int64_t rows = range.end - range.begin, threshold = top_.threshold();
        const std::size_t count = static_cast<std::size_t>(rows);
        chosen_.resize(count + 16);
        if (threshold == NONE || is_hopeless(segment, range, scores)) {
            score_all(segment, range, mask, scores, complete, stats);
            return;
        }
        const std::int64_t needed = threshold - sentence_bound(segment, range);  // of the lists
        std::size_t left;
        if (segment.heads.chunks) {
            most_.resize(count);
            kernels_.bound_rows(segment.heads, range.begin, range.end, query_.sentence, scores, needed, longest(segment, range),
                                most_.data(), &stats.heads_scored);
            left = kernels_.find_reaching(most_.data(), count, reach_of(threshold), chosen_.data());
        } else {
            left = kernels_.find_above(scores, count, needed, chosen_.data());
        }
        std::size_t kept = 0;
        for (std::size_t i = 0; i < left; ++i)
            if (!complete[chosen_[i]]) chosen_[kept++] = chosen_[i] + static_cast<std::int32_t>(range.begin);
        if (kept * 4 > count) {  // reading all of them in order is quicker
            score_all(segment, range, mask, scores, complete, stats);
            return;
        }
        add_chosen(segment, range, mask, kept, scores, stats);
        stats.sentences_skipped += rows - static_cast<std::int64_t>(kept) - seeded(complete, rows);
    }

  private:
    bool is_dense(const SegmentView &segment) const { return query_.sentence.dim > 0 && segment.sentences.dim > 0; }

    static float longest(const SegmentView &segment, const Range &range) {
        float length = 0.0f;
        for (std::int64_t block = range.begin / BLOCK; block * BLOCK < range.end; ++block)
            length = std::max(length, segment.sentence_norms[block]);
        return length;
    }

    std::int64_t sentence_bound(const SegmentView &segment, const Range &range) const {
        return bound_of(static_cast<double>(query_.sentence.norm) * longest(segment, range));
    }

    // A threshold as the bounds are given, rounded down.
    static float reach_of(std::int64_t threshold) {
        return std::nextafter(static_cast<float>(threshold) * (1.0f / GRID), -std::numeric_limits<float>::infinity());
    }

    // Whether bounds leave more than a fifth: by a sample, which decides the way and never the result.
    bool is_hopeless(const SegmentView &segment, const Range &range, const std::int64_t *scores) {
        const std::int64_t threshold = top_.threshold(), sample = std::min(SAMPLE, range.end - range.begin);
        const std::int64_t needed = threshold - sentence_bound(segment, range);
        std::int64_t reaching = 0;
        if (segment.heads.chunks) {
            std::int64_t looked_at = 0;
            most_.resize(static_cast<std::size_t>(sample));
            kernels_.bound_rows(segment.heads, range.begin, range.begin + sample, query_.sentence, scores, needed,
                                longest(segment, range), most_.data(), &looked_at);
            for (const float bound : most_) reaching += bound >= reach_of(threshold);
        } else {
            for (std::int64_t row = 0; row < sample; ++row) reaching += scores[row] >= needed;
        }
        return reaching * 5 > sample;
    }

    // The rows that score best by their lists are scored to the end: the best row of each of the best blocks, with all
    // rows of its document.
    void score_seeds(const SegmentView &segment, const Range &range, const std::uint8_t *mask, std::size_t seeds,
                     std::int64_t *scores, std::uint8_t *complete, Stats &stats) {
        const std::int64_t rows = range.end - range.begin;
        find_highest(scores, rows);
        blocks_.clear();
        for (std::size_t block = 0; block < highest_.size(); ++block)
            if (highest_[block] > 0) blocks_.push_back(static_cast<std::int32_t>(block));
        if (blocks_.size() > seeds) {
            std::nth_element(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(seeds), blocks_.end(),
                             [&](std::int32_t a, std::int32_t b) {
                                 return highest_[static_cast<std::size_t>(a)] > highest_[static_cast<std::size_t>(b)];
                             });
            blocks_.resize(seeds);
            std::sort(blocks_.begin(), blocks_.end());
        }
        chosen_.resize(static_cast<std::size_t>(rows) + 16);
        std::size_t count = 0;
        for (const std::int32_t block : blocks_) {
            const std::int64_t begin = block * BLOCK, end = std::min<std::int64_t>(begin + BLOCK, rows);
            std::int64_t row = std::max_element(scores + begin, scores + end) - scores;
            if (complete[row]) continue;  // of a document that began in the block before
            const std::int64_t ordinal = segment.row_documents[range.begin + row];
            while (row > 0 && segment.row_documents[range.begin + row - 1] == ordinal) --row;
            for (; row < rows && segment.row_documents[range.begin + row] == ordinal; ++row) {
                chosen_[count++] = static_cast<std::int32_t>(range.begin + row);
                complete[row] = 1;
            }
        }
        add_chosen(segment, range, mask, count, scores, stats);
    }

    static std::int64_t seeded(const std::uint8_t *complete, std::int64_t rows) {
        std::int64_t sum = 0;
        for (std::int64_t row = 0; row < rows; ++row) sum += complete[row];
        return sum;
    }

    void score_all(const SegmentView &segment, const Range &range, const std::uint8_t *mask, std::int64_t *scores,
                   const std::uint8_t *complete, Stats &stats) {
        const std::int64_t rows = range.end - range.begin;
        for (std::int64_t row = 0; row < rows; ++row)
            if (complete[row]) scores[row] = NONE / 2;  // a seed, which has been a candidate
        kernels_.add_rows(segment.sentences, range.begin, range.end, query_.sentence, scores);
        stats.sentences_scored += rows - seeded(complete, rows);
        chosen_.resize(static_cast<std::size_t>(rows) + 16);
        const std::size_t above = kernels_.find_above(scores, static_cast<std::size_t>(rows), std::max(top_.threshold(), NONE / 4),
                                                      chosen_.data());
        candidates_.clear();
        for (std::size_t i = 0; i < above; ++i) {
            const std::int64_t row = range.begin + chosen_[i];
            if (mask == nullptr || mask[row]) add_candidate(segment, range, row, scores[chosen_[i]], candidates_);
        }
        if (!candidates_.empty()) top_.add(candidates_);
    }

    void add_chosen(const SegmentView &segment, const Range &range, const std::uint8_t *mask, std::size_t count,
                    std::int64_t *scores, Stats &stats) {
        kernels_.pick_rows(segment.sentences, chosen_.data(), count, query_.sentence, static_cast<std::int32_t>(range.begin),
                           scores);
        stats.sentences_scored += static_cast<std::int64_t>(count);
        const std::int64_t threshold = top_.threshold();
        candidates_.clear();
        for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t row = chosen_[i], score = scores[row - range.begin];
            if (score >= threshold && (mask == nullptr || mask[row])) add_candidate(segment, range, row, score, candidates_);
        }
        if (options_.without_zero) drop_zeros(candidates_);
        if (!candidates_.empty()) top_.add(candidates_);
    }

    void collect(const SegmentView &segment, const Range &range, const std::uint8_t *mask, const std::int64_t *scores) {
        const std::int64_t rows = range.end - range.begin;
        chosen_.resize(static_cast<std::size_t>(rows) + 16);
        const std::size_t above = kernels_.find_above(scores, static_cast<std::size_t>(rows), top_.threshold(), chosen_.data());
        candidates_.clear();
        for (std::size_t i = 0; i < above; ++i) {
            const std::int64_t row = range.begin + chosen_[i], score = scores[chosen_[i]];
            if (options_.without_zero && score == 0 && alone(segment, row)) continue;
            if (mask == nullptr || mask[row]) add_candidate(segment, range, row, score, candidates_);
        }
        if (options_.without_zero) drop_zeros(candidates_);
        if (!candidates_.empty()) top_.add(candidates_);
    }

    // A list block by block. A row may have mentions in two blocks of which one is skipped: then either its best
    // mention is in the other, or it cannot reach the threshold.
    void scan_blocks(const SegmentView &segment, const Range &range, const Part &part, std::int64_t begin, std::int64_t end,
                     std::int64_t rest, std::int64_t threshold, bool touched, std::int64_t *scores, Stats &stats) {
        if (touched) find_highest(scores, range.end - range.begin);
        const float *norms = nullptr;
        if (segment.block_offsets[part.list + 1] > segment.block_offsets[part.list])
            norms = segment.block_norms + segment.block_offsets[part.list];
        ScanState state;
        std::int64_t pending = -1;  // blocks to scan are joined to one call
        for (std::int64_t at = begin; at < end;) {
            const std::int64_t block = (at - part.begin) / BLOCK;
            const std::int64_t to = std::min(part.begin + (block + 1) * BLOCK, end);
            std::int64_t bound = part.bound;
            if (norms != nullptr) bound = std::min(bound, bound_of(static_cast<double>(part.token->vector.norm) * norms[block]));
            std::int64_t highest = 0;
            if (touched) {
                const std::int64_t from = (segment.mention_rows[at] - range.begin) / BLOCK;
                const std::int64_t last = (segment.mention_rows[to - 1] - range.begin) / BLOCK;
                for (std::int64_t b = from; b <= last; ++b) highest = std::max(highest, highest_[static_cast<std::size_t>(b)]);
            }
            const bool skip = plus(plus(highest, bound), rest) < threshold;
            if (!skip && pending < 0) pending = at;
            if (pending >= 0 && (skip || to == end)) {
                const std::int64_t stop = skip ? at : to;
                kernels_.scan(segment.mentions, segment.mention_rows, pending, stop, part.token->vector, options_.floor,
                              static_cast<std::int32_t>(range.begin), scores, state);
                stats.mentions_scored += stop - pending;
                pending = -1;
            }
            if (skip) {
                stats.mentions_skipped += to - at;
                // Across a skipped block, only the row on its far side may go on.
                if (state.row != segment.mention_rows[to - 1])
                    kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores);
            }
            at = to;
        }
        kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores);
    }

    void find_highest(const std::int64_t *scores, std::int64_t rows) {
        highest_.resize(static_cast<std::size_t>((rows + BLOCK - 1) / BLOCK));
        kernels_.find_highest(scores, static_cast<std::size_t>(rows), highest_.data());
    }

    const Kernels &kernels_;
    const Options &options_;
    const Query &query_;
    TopK &top_;
    std::vector<std::int64_t> highest_;
    std::vector<std::int32_t> chosen_, blocks_;
    std::vector<Found> candidates_;
    std::vector<float> most_;
};

}  // namespace coil
