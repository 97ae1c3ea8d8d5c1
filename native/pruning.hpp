// Searches one query and skips what provably cannot be among the k best (MaxScore, with the sentence vector as one more list).
//
// A row has an upper bound: what the lists read so far count or score, plus the bounds of everything not read yet. Lists are read
// in the order of their bounds, until the remaining ones together cannot bring a new row to the threshold. Rare words have large
// bounds and short lists; the rows that are best by these lists are settled early, which gives the threshold. Then the bounds of
// the rows that can still be hits are tightened step by step, best rows first, until they are scores: lists that were not read,
// heads of sentence vectors, vectors of lists, tails.
//
// If a row without any query word can be a hit by its sentence vector, the heads of all rows are read, or all sentence vectors.
// Otherwise only the scores of rows in the lists that were read are written, and they are reset to 0 at the end.
#pragma once
#include <cmath>
#include <functional>

#include "candidates.hpp"

namespace coil {

// A share of n means 1/n.
constexpr std::size_t SEEDS = 32;        // rows settled to find a threshold
constexpr std::int64_t SEED_SHARE = 32;  // seeds are settled before more postings than this share of the rows are read
constexpr std::int64_t SOME = 1024;      // postings searched for seeds at a time
constexpr std::int64_t SHORT = 2048;     // postings of a list that is scored at once, not only counted
constexpr std::int64_t MOST_OF = 2;      // if more than this share of the postings must be read, all are
constexpr std::int64_t MANY = 4;         // if more postings than this share of the rows are read, rows are processed in order
constexpr std::int64_t HEADS_APART = 8;  // if more than this share of the heads must be read, all are, in order
constexpr std::int64_t SAMPLE = 128, SAMPLES = 8;  // rows per sample, and samples per range, to estimate how much heads rule out
constexpr std::int64_t WIDE = 12;                  // heads rule out too little if more than this share of the rows is left

class Pruner : public Settler {  // for one thread
  public:
    Pruner(const Kernels &kernels, const Options &options, const Query &query, TopK &top, Deadline &deadline)
        : Settler(kernels, options, query, top, deadline), room_(true) {}

    // Searches the rows of a range; stops after the deadline.
    void search(const SegmentView &segment, const std::vector<Line> &lines, const Range &range, const std::uint8_t *mask) {
        enter(segment, lines, range, mask, room_);
        read_essential();
        if ((dense_ && is_needed()) || !find_by_lists()) find_by_sentences();
        if (watch_.is_late(0)) return;
        settle_candidates();
        clear();
        room_.is_clean();
    }

  private:
    // Whether a row that is in none of the lists read so far can still be a hit.
    bool is_needed() const { return known_.rest + slack_ >= top_.threshold(); }

    // The score that a row needs from what was read.
    std::int64_t needed() const {
        const std::int64_t least = options_.without_zero ? 1 : SEEDED / 2, threshold = top_.threshold();
        return threshold == NONE ? least : std::max(threshold - known_.rest - slack_, least);
    }

    // Reads the essential lists: to be a hit, a row must be in one of them. Before many postings are read, seeds are settled. If
    // most postings must be read, all are scored at once.
    void read_essential() {
        essential_ = 0;
        read_ = 0;
        plain_ = wide_ || are_most_needed();
        std::int64_t some = rows_ / SEED_SHARE;
        for (; essential_ < lines_->size() && (plain_ || is_needed()) && !watch_.is_late(0); ++essential_) {
            if (essential_ > 0 && read_ + count_of(essential_) > some && !plain_) {
                settle_seeds();
                some = 4 * std::max(read_, some);
                if (!is_needed()) break;
                plain_ = are_most_needed();
            }
            read(essential_);
        }
        if (dense_ && !wide_ && is_needed()) settle_seeds();
    }

    // Whether most of the postings that were not read yet must be read with this threshold.
    bool are_most_needed() const {
        if (dense_ || top_.threshold() == NONE) return false;
        std::int64_t rest = known_.rest, more = 0, all = 0;
        for (std::size_t i = essential_; i < lines_->size(); ++i) {
            all += count_of(i);
            if (rest + slack_ >= top_.threshold()) more += count_of(i);
            rest -= (*lines_)[i].bound;
        }
        return more * MOST_OF > all;
    }

    void read(std::size_t i) {
        const bool scored = (*lines_)[i].is_counted_exactly() || plain_ || count_of(i) <= SHORT;
        read_line(i, scored ? Known::scored : Known::counted);
        read_ += count_of(i);
    }

    // Settles the rows that are best by their lists, which gives a threshold. A row that was taken is marked, so none is taken twice.
    void settle_seeds() {
        const std::size_t seeds = top_.threshold() == NONE ? std::max(SEEDS, static_cast<std::size_t>(options_.k) * 5 / 4) : SEEDS;
        std::int64_t least = needed();
        const auto shrink = [&] {
            Candidates best = take_best(seeds);
            for (const Candidate &candidate : candidates_) scores_[candidate.row] = candidate.known;
            candidates_ = std::move(best);
            std::int64_t worst = candidates_[0].known;
            for (const Candidate &candidate : candidates_) worst = std::min(worst, candidate.known);
            least = std::max(least, worst);
        };
        candidates_.clear();
        for (std::size_t i = 0; i < essential_; ++i)
            for (std::int64_t at = postings_[i].first, to; at < postings_[i].second; at = to) {
                to = std::min(at + SOME, postings_[i].second);
                const std::size_t found = find_reaching(at, to, least, 0);
                for (std::size_t p = 0; p < found; ++p) {
                    const std::int32_t row = places_[p];
                    if (scores_[row] < SEEDED / 2 || !is_allowed(row)) continue;
                    candidates_.push_back({row, scores_[row]});
                    scores_[row] = SEEDED;
                }
                if (candidates_.size() > 2 * seeds) shrink();
            }
        if (candidates_.size() > seeds) shrink();
        for (const Candidate &candidate : candidates_) scores_[candidate.row] = candidate.known;
        std::sort(candidates_.begin(), candidates_.end(), [](const Candidate &a, const Candidate &b) { return a.row < b.row; });
        if (!segment_->single_rows) whole_documents();
        settle(candidates_, known_);
    }

    // Appends the rows of postings [from, to) with at least the needed score to the first `places`. Returns the new number of places.
    std::size_t find_reaching(std::int64_t from, std::int64_t to, std::int64_t needed, std::size_t places) {
        make_places(places + static_cast<std::size_t>(to - from) + 1);
        for (std::int64_t at = from; at < to; ++at) {
            const std::int32_t row = static_cast<std::int32_t>(segment_->posting_rows[at] - range_.begin);
            places_[places] = row;
            places += scores_[row] >= needed;
        }
        return places;
    }

    void make_places(std::size_t count) {
        if (places_.size() < count) places_.resize(count);
    }

    // Finds candidates among the rows of the lists that were read. More lists are read as long as looking up the remaining rows
    // would take longer. False if so many rows remain that reading the heads of all rows in order is faster.
    bool find_by_lists() {
        std::size_t found = 0;
        if (needed() <= 0 || (plain_ && read_ * MANY > rows_)) {  // check all rows
            make_places(static_cast<std::size_t>(rows_) + LANES);
            take_places(kernels_.find_above(scores_, static_cast<std::size_t>(rows_), needed(), places_.data()));
            return true;
        }
        for (std::size_t i = 0; i < essential_; ++i) found = find_reaching(postings_[i].first, postings_[i].second, needed(), found);
        for (std::size_t next = essential_; next < lines_->size() && !watch_.is_late(0); ++next) {
            if (static_cast<std::int64_t>(found) * A_LOOKUP <= count_of(next)) break;
            read(next);
            const std::int64_t least = needed();
            const auto end = places_.begin() + static_cast<std::ptrdiff_t>(found);
            found = static_cast<std::size_t>(
                std::remove_if(places_.begin(), end, [&](std::int32_t row) { return scores_[row] < least; }) - places_.begin());
        }
        if (dense_ && static_cast<std::int64_t>(found) * HEADS_APART > rows_) return false;
        marks_.assign(static_cast<std::size_t>(rows_ / 64 + 1), 0);  // to sort the rows
        for (std::size_t p = 0; p < found; ++p) marks_[static_cast<std::size_t>(places_[p] / 64)] |= std::uint64_t{1} << (places_[p] % 64);
        found = 0;
        for (std::size_t word = 0; word < marks_.size(); ++word)
            for (std::uint64_t bits = marks_[word]; bits; bits &= bits - 1)
                places_[found++] = static_cast<std::int32_t>(word) * 64 + __builtin_ctzll(bits);
        take_places(found);
        return true;
    }

    void take_places(std::size_t count) {
        candidates_.clear();
        candidates_.reserve(count);
        for (std::size_t p = 0; p < count; ++p) {
            const std::int64_t score = scores_[places_[p]];
            if (score > SEEDED / 2 && is_allowed(places_[p])) candidates_.push_back({places_[p], score});
        }
    }

    // Finds candidates among all rows: by their heads, or by their sentence vectors if heads would rule out too little.
    void find_by_sentences() {
        make_places(static_cast<std::size_t>(rows_) + LANES);
        std::size_t found = 0;
        if (!find_by_heads(found)) {
            read_sentences();
            found = kernels_.find_above(scores_, static_cast<std::size_t>(rows_), std::max(needed(), SEEDED / 2), places_.data());
        }
        take_places(found);
    }

    // Finds the rows that can reach the threshold by their scores, their heads and the lengths of their tails. False if these rule
    // out too little, judging by some samples, which affect only the speed, never the result.
    bool find_by_heads(std::size_t &found) {
        const std::int64_t threshold = top_.threshold();
        if (threshold == NONE) return false;
        const auto value = [](std::int64_t grid) { return static_cast<float>(grid) / GRID; };
        const float longest = value(sentence_) * RAISED, least = value(threshold - (known_.rest - sentence_) - slack_);
        const HeadQuery query{query_.head, static_cast<float>(tail_step_) * RAISED, longest, least - std::abs(least) * 1e-6f};
        const auto open = [&](std::int64_t begin, std::int64_t end) {
            return kernels_.find_open(*segment_, range_.begin + begin, range_.begin + end, query, scores_ + begin, places_.data(),
                                      &stats.heads_scored);
        };
        std::int64_t looked_at = 0, left = 0;
        for (std::int64_t at = 0; at + SAMPLE <= rows_; at += std::max(rows_ / SAMPLES, SAMPLE), looked_at += SAMPLE)
            left += static_cast<std::int64_t>(open(at, at + SAMPLE));
        wide_ = left * WIDE > looked_at;
        if (wide_) return false;
        found = open(0, rows_);
        watch_.is_late(bytes_of(segment_->heads, rows_));
        return true;
    }

    // Adds all sentence vectors of the range to the scores.
    void read_sentences() {
        const std::int64_t step = std::min(rows_step(segment_->heads), rows_step(segment_->tails));
        for (std::int64_t at = 0; at < rows_; at += step) {
            const std::int64_t to = std::min(at + step, rows_);
            kernels_.add_rows(segment_->heads, range_.begin + at, range_.begin + to, query_.head, scores_ + at);
            kernels_.add_rows(segment_->tails, range_.begin + at, range_.begin + to, query_.tail, scores_ + at);
            if (watch_.is_late(bytes_of(segment_->heads, to - at) + bytes_of(segment_->tails, to - at))) return;
        }
        known_.heads = known_.tails = true;
        known_.rest -= sentence_;
        stats.sentences_scored += rows_;
        stats.heads_scored += rows_;
    }

    void settle_candidates() {
        const std::size_t k = static_cast<std::size_t>(options_.k);
        if (is_settled() && segment_->single_rows && candidates_.size() > k) candidates_ = take_best(k);
        Progress progress = known_;
        add_heads(candidates_, progress);
        for (std::size_t i = 0; i < lines_->size() && !candidates_.empty(); ++i)
            if (progress.known[i] == Known::nothing) look_up(candidates_, i, Known::counted, progress);
        settle_best_first(progress);
    }

    // Whether the scores are complete.
    bool is_settled() const {
        return (!dense_ || known_.tails) && std::all_of(known_.known.begin(), known_.known.end(), [](Known how) { return how == Known::scored; });
    }

    // Resets all scores to 0.
    void clear() {
        if (known_.tails || read_ * MANY > rows_) {
            std::fill(scores_, scores_ + rows_, 0);
            return;
        }
        for (std::size_t i = 0; i < lines_->size(); ++i) {
            if (known_.known[i] == Known::nothing) continue;
            for (std::int64_t at = postings_[i].first; at < postings_[i].second; ++at) scores_[segment_->posting_rows[at] - range_.begin] = 0;
        }
        for (const std::int32_t row : settled_) scores_[row] = 0;
    }

    Room room_;
    std::size_t essential_ = 0;         // lines that were read because a new row could become a hit by them
    std::int64_t read_ = 0;             // postings
    bool plain_ = false;                // most lists must be read, so all are, and scored
    bool wide_ = false;                 // in the previous range, heads left too many rows to read only some sentence vectors
    std::vector<std::uint64_t> marks_;  // of rows
};

}  // namespace coil
