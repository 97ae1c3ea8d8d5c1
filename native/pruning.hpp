// One query, leaving out what provably cannot be among the k best.
//
// A row has an upper bound: what lists that were read count or score, and for everything that is still to be looked at what
// it adds at most. First the lists are read, those with the largest bounds first, until no new row can reach the threshold;
// most are only counted. Then the bounds of the rows that can still win are made tighter step by step, the best rows first,
// until they are scores: lists that were not read, heads of sentence vectors, vectors of lists, tails.
#pragma once
#include <cmath>
#include <functional>
#include <tuple>

#include "candidates.hpp"

namespace coil {

constexpr std::int64_t A_LOOKUP = 12;      // postings that are read in the time of looking one up
constexpr std::int64_t WORTH_A_TRY = 2048;  // postings; before reading so many, see whether k rows are good enough already
constexpr std::size_t FEWEST = 16;         // rows settled at a time
constexpr std::int64_t SAMPLE = 128, SAMPLES = 8;  // rows, and places of a range, that tell whether heads rule out enough
constexpr std::size_t MANY = 256;  // candidates; before so many are looked up, the best are settled for a better threshold
constexpr std::int64_t FEW_ROWS = 16;  // a row that is looked at by itself costs as much as so many one after another
constexpr std::int64_t MOST_READ = 4;  // where more than a fourth of all postings must be read, all are
constexpr std::int64_t SHORT = 4096, SHORT_BESIDE_SENTENCES = 512;  // postings that are scored at once, not only counted

class Pruner : public Settler {  // for one thread
  public:
    using Settler::Settler;

    // The rows of a range; stops where it is when the time is over.
    void search(const SegmentView &segment, const std::vector<Line> &lines, const Range &range, const std::uint8_t *mask) {
        enter(segment, lines, range, mask);
        read_lists();
        if (watch_.is_late(0)) return;
        find_candidates();
        if (candidates_.empty()) return;
        if (!dense_ && read_rest()) find_candidates();
        if (is_settled()) {
            const std::size_t k = static_cast<std::size_t>(options_.k);
            if (segment.single_rows && candidates_.size() > k) candidates_ = take_best(k);
            settle(candidates_, known_);
            return;
        }
        if (!dense_ && candidates_.size() > MANY && segment.single_rows) {  // a better threshold first
            Candidates best = take_best(FEWEST);
            settle(best, known_);
            drop(candidates_, known_.rest);
        }
        Progress progress = known_;
        add_heads(candidates_, progress);
        for (std::size_t i = 0; i < lines.size() && !candidates_.empty(); ++i)
            if (progress.known[i] == Known::nothing) count_more(i, progress);
        settle_best_first(progress);
    }

  private:
    // The lists, those with the largest bounds first, until no row that has not been seen can win. Short lists come first by
    // themselves: their best rows give a threshold which may spare the others.
    void read_lists() {
        settled_.clear();
        auto [needed, postings, rest] = needed_lines();
        if (!dense_ && few_ && top_.threshold() != NONE && postings > rows_ / 16) {
            few_ = read_few(needed);
            if (few_) return;
        }
        std::tie(needed, postings, rest) = needed_lines();
        const std::int64_t threshold = top_.threshold();
        // Where most of it must be read, looking up the rest costs more than reading that too.
        std::int64_t all = 0;
        for (std::size_t i = 0; i < lines_->size(); ++i) all += count_of(i);
        const bool most = (!dense_ && postings * MOST_READ > all) || (dense_ && wide_);
        if (most) needed = lines_->size();
        // Where only few rows are seen, the others are neither set to 0 nor looked at.
        start(needed, !most && rest + slack_ < threshold && postings * FEW_ROWS < rows_);
        bool exact = !dense_;  // scores are what rows score at least
        for (std::size_t i = 0; i < needed && !watch_.is_late(0); ++i) {
            if (!most && known_.rest + slack_ < top_.threshold()) break;
            if (exact && !most && count_of(i) >= WORTH_A_TRY && options_.k > 10 && raise_threshold()) break;
            const bool scored = (*lines_)[i].is_counted_exactly() || most || threshold == NONE || count_of(i) <= (dense_ ? SHORT_BESIDE_SENTENCES : SHORT);
            read(i, scored ? Known::scored : Known::counted);
            exact = exact && scored;
        }
        for (const std::int32_t row : settled_) scores_[row] = SEEDED;
        if (dense_ && !wide_) settle_seeds();
    }

    // How many lines must be read so that no other row can win, their postings, and what the other lines can add.
    std::tuple<std::size_t, std::int64_t, std::int64_t> needed_lines() const {
        std::int64_t rest = total_, postings = 0;
        std::size_t needed = 0;
        for (; needed < lines_->size() && rest + slack_ >= top_.threshold(); ++needed) {
            rest -= (*lines_)[needed].bound;
            postings += count_of(needed);
        }
        return {needed, postings, rest};
    }

    // Reads the first, short lines. Whether they are enough, with the threshold that their best rows give.
    bool read_few(std::size_t needed) {
        std::size_t few = 0;
        std::int64_t rest = total_;
        for (std::int64_t postings = 0; few < needed; ++few) {
            if ((postings += count_of(few)) > rows_ / 16) break;
            rest -= (*lines_)[few].bound;
        }
        // The threshold may well rise by a third, but hardly by more.
        if (!few || rest > top_.threshold() + top_.threshold() / 3) return false;
        start(few, true);
        for (std::size_t i = 0; i < few; ++i) read(i, Known::scored);
        settle_seeds();
        return std::get<0>(needed_lines()) <= few;
    }

    // Nothing is known yet. The rows of the first lines are set to 0, with the other rows of their documents: only these, or all.
    void start(std::size_t lines, bool sparse) {
        known_ = {total_, std::vector<Known>(lines_->size(), Known::nothing), false, false};
        sparse_ = sparse;
        touched_ = lines;
        if (!sparse) std::fill(scores_, scores_ + rows_, 0);
        for (std::size_t i = 0; i < lines && sparse; ++i) {
            std::int64_t next = 0;  // first row after the document that was set to 0 last
            for (std::int64_t at = postings_[i].first; at < postings_[i].second; ++at) {
                const std::int64_t row = segment_->posting_rows[at] - range_.begin;
                if (row < next) continue;
                const auto [first, end] = document_at(row);
                std::fill(scores_ + first, scores_ + end, 0);
                next = end;
            }
        }
    }

    // The rows of the document that a row belongs to.
    std::pair<std::int64_t, std::int64_t> document_at(std::int64_t row) const {
        if (segment_->single_rows) return {row, row + 1};
        const std::int64_t *const ordinals = segment_->row_documents + range_.begin;
        std::int64_t first = row, end = row + 1;
        while (first > 0 && ordinals[first - 1] == ordinals[row]) --first;
        while (end < rows_ && ordinals[end] == ordinals[row]) ++end;
        return {first, end};
    }

    // Whether scores are all there is to know.
    bool is_settled() const {
        return (!dense_ || known_.tails) && std::all_of(known_.known.begin(), known_.known.end(), [](Known how) { return how == Known::scored; });
    }

    // Reads a line of which nothing is known into the scores.
    void read(std::size_t i, Known how) {
        const Line &line = (*lines_)[i];
        if (how == Known::counted) {
            line.count(kernels_, postings_[i].first, postings_[i].second, range_.begin, scores_, false);
            watch_.is_late(16 * count_of(i));
        } else {
            score(i);
        }
        known_.known[i] = how;
        known_.rest -= line.bound;
    }

    void score(std::size_t i) {
        const Line &line = (*lines_)[i];
        const auto [begin, end] = postings_[i];
        for (std::int64_t at = begin, to; at < end; at = to) {
            to = step_end(line.list, at, STEP, end);
            const Stretch stretch = line.list.between(*segment_, at, to);
            for (const QueryToken *token : line.tokens) {
                const Term term = term_of(query_, *token);
                kernels_.add_list(*segment_, stretch, term, range_.begin, scores_);
                stats.mentions_scored += stretch.end - stretch.begin;
                if (watch_.is_late(work_of(*segment_, term, stretch))) return;
            }
        }
    }

    // All lists that were not read, where there are so many candidates that looking them up would take longer.
    bool read_rest() {
        std::int64_t postings = 0;
        for (std::size_t i = 0; i < lines_->size(); ++i)
            if (known_.known[i] == Known::nothing) postings += count_of(i);
        if (!postings || static_cast<std::int64_t>(candidates_.size()) * A_LOOKUP < postings) return false;
        for (std::size_t i = 0; i < lines_->size(); ++i)
            if (known_.known[i] == Known::nothing) read(i, Known::scored);
        return true;
    }

    // A list that was not read: where there are many candidates, reading it all is quicker than looking up postings. Rows that
    // have no score get something then that nobody looks at.
    void count_more(std::size_t i, Progress &progress) {
        if (static_cast<std::int64_t>(candidates_.size()) * A_LOOKUP < count_of(i)) {
            look_up(candidates_, i, Known::counted, progress);
            return;
        }
        for (Candidate &candidate : candidates_) candidate.known -= scores_[candidate.row];
        read(i, (*lines_)[i].is_counted_exactly() ? Known::scored : Known::counted);
        for (Candidate &candidate : candidates_) candidate.known += scores_[candidate.row];
        progress.known[i] = known_.known[i];
        progress.rest -= (*lines_)[i].bound;
        drop(candidates_, progress.rest);
    }

    // The rows that are best by their lists give a threshold.
    void settle_seeds() {
        const std::int64_t threshold = top_.threshold();
        const std::size_t seeds = dense_ && threshold == NONE ? std::max(FEWEST, static_cast<std::size_t>(options_.k)) : FEWEST;
        candidates_.clear();
        if (sparse_) {
            find_touched(threshold == NONE ? 1 : threshold - known_.rest - slack_);
            if (candidates_.size() > seeds) candidates_ = take_best(seeds);
        } else {
            find_best(seeds, threshold == NONE ? SEEDED / 2 : std::max<std::int64_t>(threshold - known_.rest - slack_, 1));
        }
        if (!segment_->single_rows) whole_documents();
        settle(candidates_, known_);
    }

    // The rows with the highest scores from `needed` on: some rows at a time, with a threshold that rises.
    void find_best(std::size_t count, std::int64_t needed) {
        constexpr std::int64_t SOME = 2048;
        places_.resize(static_cast<std::size_t>(rows_) + LANES);
        for (std::int64_t at = 0; at < rows_; at += SOME) {
            const std::size_t here = static_cast<std::size_t>(std::min(SOME, rows_ - at));
            const std::size_t found = kernels_.find_above(scores_ + at, here, needed, places_.data());
            for (std::size_t i = 0; i < found; ++i)
                if (is_allowed(at + places_[i])) candidates_.push_back({static_cast<std::int32_t>(at) + places_[i], scores_[at + places_[i]]});
            if (candidates_.size() <= count) continue;
            candidates_ = take_best(count);
            std::int64_t least = candidates_[0].known;
            for (const Candidate &candidate : candidates_) least = std::min(least, candidate.known);
            needed = std::max(needed, least);
        }
    }

    // Whether k rows score so much by what was read that no row that has not been seen can be better.
    bool raise_threshold() {
        const std::int64_t needed = known_.rest + slack_ + 1;
        if (needed <= top_.threshold()) return false;
        candidates_.clear();
        find_reaching(needed);
        if (!segment_->single_rows) {  // a document counts once
            std::int64_t last = -1;
            candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                             [&](const Candidate &c) {
                                                 const std::int64_t ordinal = segment_->row_documents[range_.begin + c.row];
                                                 return std::exchange(last, ordinal) == ordinal;
                                             }),
                              candidates_.end());
        }
        const std::size_t k = static_cast<std::size_t>(options_.k);
        if (candidates_.size() < k) return false;
        const auto worst = candidates_.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(candidates_.begin(), worst, candidates_.end(),
                         [](const Candidate &a, const Candidate &b) { return a.known > b.known; });
        top_.raise(worst->known);
        return true;
    }

    // Rows that can still win.
    void find_candidates() {
        const std::int64_t threshold = top_.threshold();
        candidates_.clear();
        if (dense_ && threshold != NONE) {
            if (find_by_heads(threshold)) return;
            read_sentences();
        }
        find_reaching(threshold == NONE ? (options_.without_zero ? 1 : SEEDED / 2) : threshold - known_.rest - slack_);
    }

    // Rows whose scores reach `needed`.
    void find_reaching(std::int64_t needed) {
        needed = std::max(needed, SEEDED / 2);
        if (sparse_) {
            find_touched(needed);
            return;
        }
        places_.resize(static_cast<std::size_t>(rows_) + LANES);
        const std::size_t found = kernels_.find_above(scores_, static_cast<std::size_t>(rows_), needed, places_.data());
        for (std::size_t i = 0; i < found; ++i)
            if (is_allowed(places_[i])) candidates_.push_back({places_[i], scores_[places_[i]]});
    }

    // The same where only the rows of some lines have scores; bits bring the rows into order.
    void find_touched(std::int64_t needed) {
        bits_.assign(static_cast<std::size_t>(rows_ / 64 + 1), 0);
        for (std::size_t i = 0; i < touched_; ++i)
            for (std::int64_t at = postings_[i].first; at < postings_[i].second; ++at) {
                const std::int64_t row = segment_->posting_rows[at] - range_.begin;
                bits_[static_cast<std::size_t>(row / 64)] |= std::uint64_t{scores_[row] >= needed} << (row % 64);
            }
        for (std::size_t word = 0; word < bits_.size(); ++word)
            for (std::uint64_t bits = bits_[word]; bits; bits &= bits - 1) {
                const std::int32_t row = static_cast<std::int32_t>(word) * 64 + __builtin_ctzll(bits);
                if (is_allowed(row)) candidates_.push_back({row, scores_[row]});
            }
    }

    // Rows that reach the threshold by their scores, their heads and the lengths of their tails. False where these rule out too
    // little: by some samples, which decide the way, never the result.
    bool find_by_heads(std::int64_t threshold) {
        const auto value = [](std::int64_t grid) { return static_cast<float>(grid) / GRID; };
        const float longest = value(sentence_) * RAISED, needed = value(threshold - (known_.rest - sentence_) - slack_);
        const HeadQuery query{query_.head, static_cast<float>(tail_step_) * RAISED, longest, needed - std::abs(needed) * 1e-6f};
        places_.resize(static_cast<std::size_t>(rows_) + LANES);
        const auto open = [&](std::int64_t begin, std::int64_t end) {
            return kernels_.find_open(*segment_, range_.begin + begin, range_.begin + end, query, scores_ + begin, places_.data(),
                                      &stats.heads_scored);
        };
        if (sparse_) {
            find_reaching(threshold - known_.rest - slack_);
            return true;
        }
        std::int64_t looked_at = 0, left = 0;
        for (std::int64_t at = 0; at + SAMPLE <= rows_; at += std::max(rows_ / SAMPLES, SAMPLE), looked_at += SAMPLE)
            left += static_cast<std::int64_t>(open(at, at + SAMPLE));
        wide_ = left * 4 > looked_at;
        if (wide_) return false;
        const std::size_t found = open(0, rows_);
        watch_.is_late(bytes_of(segment_->heads, rows_));
        for (std::size_t i = 0; i < found; ++i)
            if (scores_[places_[i]] > SEEDED / 2 && is_allowed(places_[i])) candidates_.push_back({places_[i], scores_[places_[i]]});
        return true;
    }

    // All sentence vectors of the range into the scores.
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

    // All rows of the documents that candidates belong to, in place of the candidates.
    void whole_documents() {
        Candidates whole;
        std::int64_t next = 0;
        for (const Candidate &candidate : candidates_) {
            if (candidate.row < next) continue;
            const auto [first, end] = document_at(candidate.row);
            for (std::int64_t row = first; row < end; ++row) whole.push_back({static_cast<std::int32_t>(row), scores_[row]});
            next = end;
        }
        candidates_ = std::move(whole);
    }

    // The best of all candidates first: they raise the threshold for the rest.
    void settle_best_first(Progress &progress) {
        std::size_t size = std::max(FEWEST, static_cast<std::size_t>(options_.k) / 4);
        Candidates batch;
        while (!candidates_.empty() && !watch_.is_late(0)) {
            drop(candidates_, progress.rest);
            if (!segment_->single_rows || candidates_.size() <= size + size / 2) {  // the rows of a document are settled together
                batch.swap(candidates_);
                candidates_.clear();
                score_more(batch, progress);
                settle(batch, progress);
                return;
            }
            batch = take_best(size);
            score_more(batch, progress);
            settle(batch, progress);
            size *= 2;
        }
    }

    // Where many are to be settled, lists that were only counted are scored as a whole.
    void score_more(Candidates &batch, Progress &progress) {
        const std::int64_t count = static_cast<std::int64_t>(batch.size());
        bool any = false;
        for (std::size_t i = 0; i < lines_->size(); ++i) any = any || (known_.known[i] == Known::counted && count * A_LOOKUP >= count_of(i));
        if (!any) return;
        for (Candidates *some : {&batch, &candidates_})
            for (Candidate &candidate : *some) candidate.known -= scores_[candidate.row];
        for (std::size_t i = 0; i < lines_->size(); ++i) {
            const auto [begin, end] = postings_[i];
            if (known_.known[i] != Known::counted || count * A_LOOKUP < end - begin) continue;
            (*lines_)[i].count(kernels_, begin, end, range_.begin, scores_, true);
            score(i);
            known_.known[i] = progress.known[i] = Known::scored;
        }
        for (Candidates *some : {&batch, &candidates_})
            for (Candidate &candidate : *some) candidate.known += scores_[candidate.row];
    }

    bool sparse_ = false;      // only the rows of the first lines have scores
    std::size_t touched_ = 0;  // how many lines these are
    bool few_ = true;          // of the range before, short lists were enough
    bool wide_ = false;        // of the range before, too many rows were left to read only some sentence vectors
    std::vector<std::uint64_t> bits_;  // of rows
};

}  // namespace coil
