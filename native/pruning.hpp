// One query, leaving out what provably cannot be among the k best.
//
// First the lists of every range; of each range the rows that score best by them are scored to the end, which gives
// a threshold. Then the sentence vectors of those rows that can still reach it.
#pragma once
#include <cmath>

#include "ranges.hpp"

namespace coil {

constexpr std::int64_t SAMPLE = 256, SAMPLES = 8;  // rows, and places of a range, that tell whether sketches rule out enough
constexpr std::size_t FEWEST_SEEDS = 16;  // rows of a range that are scored to the end first

constexpr std::int64_t SEEDED = NONE / 2;  // instead of the list score of a row that has been scored to the end

// A range, where its scores are kept between the two passes, and how many of its rows were scored to the end in the first.
struct Kept {
    Range range;
    std::int64_t offset, seeded;
};

// The query along a segment's main axes. With axes that stand at right angles, s·q is at most the product of the sketches
// plus that of the lengths of what is left of both; what they lack of right angles is far below the slack.
inline SketchQuery sketch_query(const SegmentView &segment, const QueryVector &q) {
    SketchQuery found;
    const Sketches &sketches = segment.sketches;
    if (!sketches.quads || !q.dim) return found;
    std::vector<double> rest(q.exact.begin(), q.exact.begin() + q.dim);
    double along[MOST_AXES] = {}, squares = 0.0, rest_squares = 0.0, largest = 0.0;
    for (int h = 0; h < sketches.dim; ++h) {
        const float *axis = sketches.axes + static_cast<std::int64_t>(h) * q.dim;
        for (int d = 0; d < q.dim; ++d) along[h] += static_cast<double>(axis[d]) * q.exact[static_cast<std::size_t>(d)];
        for (int d = 0; d < q.dim; ++d) rest[static_cast<std::size_t>(d)] -= along[h] * axis[d];
        squares += along[h] * along[h];
        largest = std::max(largest, std::abs(along[h]));
    }
    for (const double value : rest) rest_squares += value * value;
    found.scale = static_cast<float>(largest / QUERY_LEVELS);
    double error_squares = 0.0;
    for (int h = 0; h < sketches.dim && found.scale > 0.0f; ++h) {
        const int code = static_cast<int>(std::clamp(std::nearbyint(along[h] / found.scale), -16383.0, 16383.0));
        found.codes[h] = static_cast<std::int16_t>(code);
        found.high[h] = static_cast<std::int8_t>(code >> 7);
        found.low[h] = static_cast<std::int8_t>(code & 127);
        found.code_sum += code;
        const double error = along[h] - static_cast<double>(code) * found.scale;
        error_squares += error * error;
    }
    const auto raised = [](double value) { return static_cast<float>(value * (1 + 1e-5)); };
    found.norm = q.norm;
    found.sketch_norm = raised(std::sqrt(squares));
    found.tail_norm = raised(std::sqrt(rest_squares));
    // Products are rounded, and so are the query and its sketch; 255 steps are the longest sentence vector.
    found.slack = raised((q.norm * 2e-4 + q.code_error + std::sqrt(error_squares)) * 255.0 * sketches.step);
    return found;
}

class Pruner {  // for one thread
  public:
    Pruner(const Kernels &kernels, const Options &options, const Query &query, TopK &top, Deadline &deadline)
        : kernels_(kernels), options_(options), query_(query), top_(top), watch_(deadline) {}

    // The first pass over a range: its lists. `scores` has room for its rows. Returns how many were scored to the end. Both
    // passes stop where they are when the time is over.
    std::int64_t read_lists(const SegmentView &segment, const Range &range, const std::vector<Part> &parts,
                            const std::uint8_t *mask, std::size_t seeds, std::int64_t *scores, Stats &stats) {
        if (memory_fault.strikes()) throw std::bad_alloc();
        const std::int64_t rows = range.end - range.begin;
        std::fill(scores, scores + rows, 0);
        const bool dense = is_dense(segment);
        std::int64_t rest = dense ? sentence_bound(segment, range) : 0;  // what is still to come can add
        for (const Part &part : parts) rest = plus(rest, part.bound);
        bool touched = false;
        for (const Part &part : parts) {
            rest -= part.bound;
            const auto [begin, end] = part.within(range);
            if (begin == end) continue;
            const std::int64_t threshold = top_.threshold();
            // Blocks are worth looking at only where the list is long: their highest scores have to be found.
            if (threshold == NONE || rest >= threshold || (end - begin) * 4 < rows) {
                ScanState state;
                if (!scan(kernels_, segment, begin, end, part.token->vector, query_.floor, range.begin, scores, state, watch_)) return 0;
                kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores);
                stats.mentions_scored += end - begin;
            } else if (!scan_blocks(segment, range, part, begin, end, rest, threshold, touched, scores, stats)) {
                return 0;
            }
            touched = true;
        }
        if (dense) return score_seeds(segment, range, mask, seeds, scores, stats);
        collect(segment, range, mask, scores);
        return 0;
    }

    // The second pass: sentence products of the rows that can still reach the threshold.
    void read_sentences(const SegmentView &segment, const SketchQuery &sketch, const Kept &kept, const std::uint8_t *mask,
                        std::int64_t *scores, Stats &stats) {
        if (!is_dense(segment)) return;
        const Range &range = kept.range;
        const std::int64_t rows = range.end - range.begin;
        chosen_.resize(static_cast<std::size_t>(rows) + 16);
        std::size_t left = static_cast<std::size_t>(rows);
        const std::int64_t begin = range.begin;
        // Whether bounds rule out enough to be worth their time: by the range before, or by samples. This decides the way,
        // never the result.
        const auto few = [](std::size_t open, std::int64_t of) { return static_cast<std::int64_t>(open) * 3 < of; };
        if (!worth_ && top_.threshold() != NONE) {
            const std::int64_t apart = std::max<std::int64_t>(rows / SAMPLES, SAMPLE);
            std::size_t open = 0;
            std::int64_t looked_at = 0;
            for (std::int64_t at = 0; at + SAMPLE <= rows; at += apart, looked_at += SAMPLE)
                open += find_open(segment, sketch, begin + at, begin + at + SAMPLE, scores + at, stats);
            worth_ = looked_at == 0 || few(open, looked_at);
        }
        if (worth_) left = find_open(segment, sketch, begin, range.end, scores, stats);
        worth_ = few(left, rows);
        if (!worth_) {  // reading all of them in order is quicker
            score_all(segment, kept, mask, scores, stats);
            return;
        }
        for (std::size_t i = 0; i < left; ++i) chosen_[i] += static_cast<std::int32_t>(begin);
        add_chosen(segment, range, mask, left, scores, stats);
        stats.sentences_skipped += rows - static_cast<std::int64_t>(left) - kept.seeded;
    }

  private:
    bool is_dense(const SegmentView &segment) const { return query_.sentence.dim > 0 && segment.sentences.dim > 0; }

    static float longest(const SegmentView &segment, std::int64_t begin, std::int64_t end) {
        float length = 0.0f;
        for (std::int64_t block = begin / BLOCK; block * BLOCK < end; ++block)
            length = std::max(length, segment.sentence_norms[block]);
        return length;
    }

    std::int64_t sentence_bound(const SegmentView &segment, const Range &range) const {
        return bound_of(static_cast<double>(query_.sentence.norm) * longest(segment, range.begin, range.end));
    }

    // Rows [begin, end) that may reach the threshold, as places in chosen_.
    std::size_t find_open(const SegmentView &segment, const SketchQuery &sketch, std::int64_t begin, std::int64_t end,
                          const std::int64_t *scores, Stats &stats) {
        const std::int64_t threshold = top_.threshold();
        if (!segment.sketches.quads) {
            const std::int64_t needed = threshold - bound_of(static_cast<double>(query_.sentence.norm) * longest(segment, begin, end));
            return kernels_.find_above(scores, static_cast<std::size_t>(end - begin), std::max(needed, SEEDED / 2), chosen_.data());
        }
        const float rounded = static_cast<float>(threshold) * (1.0f / GRID);
        const float reach = std::nextafter(rounded, -std::numeric_limits<float>::infinity());
        return kernels_.find_open(segment.sketches, begin, end, sketch, scores, reach, chosen_.data(), &stats.sketches_scored);
    }

    // The rows that score best by their lists are scored to the end: the best row of each of the best blocks, with all
    // rows of its document.
    std::int64_t score_seeds(const SegmentView &segment, const Range &range, const std::uint8_t *mask, std::size_t seeds,
                             std::int64_t *scores, Stats &stats) {
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
            const std::int64_t ordinal = segment.row_documents[range.begin + row];
            while (row > 0 && segment.row_documents[range.begin + row - 1] == ordinal) --row;
            // A document that began in the block before may be there already: blocks ascend, so it is the last one.
            const std::int32_t last = count ? chosen_[count - 1] : -1;
            for (; row < rows && segment.row_documents[range.begin + row] == ordinal; ++row)
                if (range.begin + row > last) chosen_[count++] = static_cast<std::int32_t>(range.begin + row);
        }
        add_chosen(segment, range, mask, count, scores, stats);
        for (std::size_t i = 0; i < count; ++i) scores[chosen_[i] - range.begin] = SEEDED;
        return static_cast<std::int64_t>(count);
    }

    void score_all(const SegmentView &segment, const Kept &kept, const std::uint8_t *mask, std::int64_t *scores, Stats &stats) {
        const Range &range = kept.range;
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t step = step_of(segment.sentences);
        for (std::int64_t at = range.begin, to; at < range.end; at = to) {
            to = std::min(at + step, range.end);
            kernels_.add_rows(segment.sentences, at, to, query_.sentence, scores + (at - range.begin));
            if (watch_.is_late(bytes_of(segment.sentences, to - at))) return;
        }
        stats.sentences_scored += rows - kept.seeded;
        const std::size_t above = kernels_.find_above(scores, static_cast<std::size_t>(rows), std::max(top_.threshold(), SEEDED / 2),
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
        const std::size_t step = static_cast<std::size_t>(step_of(segment.sentences));
        for (std::size_t at = 0; at < count; at += step) {
            const std::size_t some = std::min(step, count - at);
            kernels_.pick_rows(segment.sentences, chosen_.data() + at, some, query_.sentence, static_cast<std::int32_t>(range.begin),
                               scores);
            if (watch_.is_late(bytes_of(segment.sentences, static_cast<std::int64_t>(some)))) return;
        }
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
    bool scan_blocks(const SegmentView &segment, const Range &range, const Part &part, std::int64_t begin, std::int64_t end,
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
                if (!scan(kernels_, segment, pending, stop, part.token->vector, query_.floor, range.begin, scores, state, watch_))
                    return false;
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
        return true;
    }

    void find_highest(const std::int64_t *scores, std::int64_t rows) {
        highest_.resize(static_cast<std::size_t>((rows + BLOCK - 1) / BLOCK));
        kernels_.find_highest(scores, static_cast<std::size_t>(rows), highest_.data());
    }

    const Kernels &kernels_;
    const Options &options_;
    const Query &query_;
    TopK &top_;
    Watch watch_;
    std::vector<std::int64_t> highest_;
    std::vector<std::int32_t> chosen_, blocks_;
    std::vector<Found> candidates_;
    bool worth_ = false;
};

}  // namespace coil
