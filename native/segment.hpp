// A segment as the kernels read it. Nothing is read before it has been checked: whatever the arrays hold, a search stays
// within them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>

#include "arrays.hpp"
#include "search.hpp"

namespace coil {

class Segment {
  public:
    // Arrays under the names that docs/format.md gives them.
    Segment(nb::dict named, std::int64_t n_t) : arrays_(std::move(named)) {
        const Span<std::int32_t> list_ids = arrays_.get<std::int32_t>("list_ids");
        const Span<std::int64_t> list_offsets = arrays_.get<std::int64_t>("list_offsets");
        const Span<std::uint16_t> mention_rows = arrays_.get<std::uint16_t>("mention_rows");
        const Span<std::int64_t> row_documents = arrays_.get<std::int64_t>("row_documents");
        const Span<float> list_norms = arrays_.get<float>("list_norms");
        const Span<std::int64_t> block_offsets = arrays_.get<std::int64_t>("block_offsets");
        const Span<float> block_norms = arrays_.get<float>("block_norms");
        const Span<float> sentence_norms = arrays_.get<float>("sentence_norms");
        const std::int64_t lists = list_ids.size, mentions = mention_rows.size, rows = row_documents.size;
        check(rows <= MOST_ROWS, "row_documents", "has more than 65,536 rows");
        view.mentions = vectors("vectors", "vector_scales", mentions, n_t);
        view.sentences = vectors("sentences", "sentence_scales", rows, arrays_.width("sentences"));
        check(list_norms.size == lists, "list_norms", "has the wrong size");
        check(!view.sentences.dim || sentence_norms.size == (rows + BLOCK - 1) / BLOCK, "sentence_norms", "has the wrong size");
        view.list_ids = list_ids.data;
        view.list_offsets = list_offsets.data;
        view.lists = lists;
        view.mention_rows = mention_rows.data;
        view.row_documents = row_documents.data;
        view.rows = rows;
        view.list_norms = list_norms.data;
        view.block_offsets = block_offsets.data;
        view.block_norms = block_norms.data;
        view.sentence_norms = sentence_norms.data;
        take_sketches();
        const nb::gil_scoped_release release;
        check_lists(list_ids, list_offsets, mentions);
        check_blocks(list_offsets, block_offsets, block_norms.size);
        check_documents(row_documents);
        check_norms("list_norms", list_norms);
        check_norms("block_norms", block_norms);
        check_norms("sentence_norms", sentence_norms);
        checked_ = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(lists));
    }

    SegmentView view;

    // A row out of range would be written outside the scores: the rows of a list are checked before its first use. Needs no
    // lock: two threads may check the same list, to the same effect. Returns whether there was anything to do.
    bool check_rows(std::int32_t list_id) {
        const std::int32_t *end = view.list_ids + view.lists;
        const std::int32_t *found = std::lower_bound(view.list_ids, end, list_id);
        if (found == end || *found != list_id) return false;
        const std::size_t list = static_cast<std::size_t>(found - view.list_ids);
        if (checked_[list].load(std::memory_order_relaxed)) return false;
        const std::uint16_t *const rows = view.mention_rows + view.list_offsets[list];
        const std::uint16_t *const stop = view.mention_rows + view.list_offsets[list + 1];
        check(std::is_sorted(rows, stop) && (rows == stop || stop[-1] < view.rows), "mention_rows",
              "of a list are not ascending or not rows of the segment");
        checked_[list].store(true, std::memory_order_relaxed);
        return true;
    }

  private:
    static constexpr std::int64_t MOST_ROWS = 65536;

    Vectors vectors(const char *name, const char *scales_name, std::int64_t count, std::int64_t dim) {
        // Checked first, so that no product below overflows.
        check(dim >= 0 && dim <= MOST_DIM, name, "has vectors of a width that the kernels cannot read");
        Vectors found;
        const Span<std::uint8_t> values = arrays_.get_values(name, found.kind);
        check(values.size == count * dim, name, "has the wrong size");
        found.data = values.data;
        found.count = count;
        found.dim = static_cast<int>(dim);
        if (found.kind == Kind::int8) {
            const Span<std::uint8_t> scales = arrays_.get<std::uint8_t>(scales_name);
            check(scales.size == count, scales_name, "has the wrong size");
            found.scales = scales.data;
        }
        return found;
    }

    void take_sketches() {
        const Span<std::int8_t> sketches = arrays_.get<std::int8_t>("sketches");
        if (!view.sentences.dim || !sketches.size) return;
        const int dim = std::min(view.sentences.dim, MOST_AXES), quads = (dim + 3) / 4;
        const auto of_rows = [&](const char *name) {
            const Span<std::uint8_t> found = arrays_.get<std::uint8_t>(name);
            check(found.size == view.rows, name, "has the wrong size");
            return found.data;
        };
        check(sketches.size == (view.rows + LANES - 1) / LANES * quads * 64, "sketches", "has the wrong size");
        const Span<float> axes = arrays_.get<float>("sketch_axes");
        check(axes.size == static_cast<std::int64_t>(dim) * view.sentences.dim, "sketch_axes", "has the wrong size");
        const Span<float> step = arrays_.get<float>("norm_step");
        check(step.size == 1 && step[0] >= 0.0f && std::isfinite(step[0]), "norm_step", "is not a length");
        view.sketches = {reinterpret_cast<const std::uint8_t *>(sketches.data), of_rows("sketch_scales"), of_rows("row_norms"),
                         of_rows("tail_norms"), axes.data, step[0], dim, quads};
    }

    // Offsets begin at 0, never fall, and end at `last`: then every difference of two of them is safe to compute.
    static void check_offsets(const char *name, const Span<std::int64_t> &offsets, std::int64_t size, std::int64_t last) {
        check(offsets.size == size, name, "has the wrong size");
        check(offsets[0] == 0 && offsets[size - 1] == last, name, "does not run from 0 to the end of its array");
        check(std::is_sorted(offsets.data, offsets.data + size), name, "is not ascending");
    }

    static void check_lists(const Span<std::int32_t> &ids, const Span<std::int64_t> &offsets, std::int64_t mentions) {
        check_offsets("list_offsets", offsets, ids.size + 1, mentions);
        const std::int32_t *const end = ids.data + ids.size;
        check(std::adjacent_find(ids.data, end, std::greater_equal<>()) == end, "list_ids", "is not strictly ascending");
    }

    static void check_blocks(const Span<std::int64_t> &lists, const Span<std::int64_t> &blocks, std::int64_t norms) {
        check_offsets("block_offsets", blocks, lists.size, norms);
        for (std::int64_t i = 0; i + 1 < lists.size; ++i) {
            const std::int64_t found = blocks[i + 1] - blocks[i], mentions = lists[i + 1] - lists[i];
            check(found == 0 || found == mentions / BLOCK + (mentions % BLOCK != 0), "block_offsets",
                  "gives a list the wrong number of blocks");
        }
    }

    static void check_documents(const Span<std::int64_t> &documents) {
        check(!documents.size || documents[0] >= 0, "row_documents", "holds a negative number");
        check(std::is_sorted(documents.data, documents.data + documents.size), "row_documents", "is not ascending");
    }

    static void check_norms(const char *name, const Span<float> &norms) {
        check(std::all_of(norms.data, norms.data + norms.size, [](float norm) { return norm >= 0.0f; }), name,
              "holds a negative number or NaN");
    }

    Arrays arrays_;
    std::unique_ptr<std::atomic<bool>[]> checked_;  // [lists]
};

}  // namespace coil
