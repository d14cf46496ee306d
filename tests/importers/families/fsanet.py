"""FSA-Net written plainly from its description, under the names of its authors' tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.importers.families.networks import squash

WIDTHS = (3, 16, 32, 32, 64, 64, 128, 128)
BLOCKS = ("conv0", "conv1_0", "conv1_1", "conv2_0", "conv2_1", "conv3_0", "conv3_1")


class FsaNet(nn.Module):
    """``scoring``: convolution or variance; ``yaw``: the largest yaw."""

    def __init__(self, scoring: str = "convolution", yaw: float = 99.0) -> None:
        super().__init__()
        self.scoring, self.yaw = scoring, yaw
        self.msms = nn.Module()
        for s in ("s0", "s1"):
            for a, b, name in zip(WIDTHS, WIDTHS[1:], BLOCKS, strict=False):
                block = nn.Module()
                block.conv = nn.Module()
                block.conv.depthwise = nn.Conv2d(a, a, 3, padding=1, groups=a)
                block.conv.pointwise = nn.Conv2d(a, b, 1)
                block.bn = nn.BatchNorm2d(b)
                block.bn.running_mean.normal_(0, 0.1)
                block.bn.running_var.uniform_(0.5, 1.5)
                self.msms.add_module(f"{s}_{name}", block)
            for k, width in enumerate((32, 64, 128)):
                out = nn.Module()
                out.conv = nn.Conv2d(width, 64, 1)
                self.msms.add_module(f"{s}_conv{k + 1}_out", out)
        self.fgsm = nn.Module()
        if scoring == "convolution":
            self.fgsm.attention_maps = nn.Module()
            self.fgsm.attention_maps.reduce_channel = nn.Module()
            self.fgsm.attention_maps.reduce_channel.conv = nn.Conv2d(64, 1, 1)
        self.fgsm.fm, self.fgsm.fc = nn.Linear(64, 960), nn.Linear(192, 35)
        self.caps_layer = nn.Module()
        self.caps_layer.affine_w = nn.Parameter(0.3 * torch.randn(3, 21, 16, 64))
        for k in (1, 2, 3):
            stage = nn.Module()
            stage.shift_fc, stage.scale_fc = nn.Linear(4, 3), nn.Linear(4, 3)
            stage.pred_fc = nn.Linear(8, 9)
            self.add_module(f"esp_s{k}", stage)

    def stream(self, s: str, x: Tensor) -> list[Tensor]:
        found = []
        for name in BLOCKS:
            block = self.msms.get_submodule(f"{s}_{name}")
            y = block.bn(block.conv.pointwise(block.conv.depthwise(x)))
            x = y.relu() if s == "s0" or name == "conv0" else y.tanh()
            if name in ("conv0", "conv1_1", "conv2_1"):
                x = nn.functional.avg_pool2d(x, 2) if s == "s0" else nn.functional.max_pool2d(x, 2)
            if name.endswith("_1"):
                z = self.msms.get_submodule(f"{s}_{name[:-2]}_out").conv(x)
                found.append(z.relu() if s == "s0" else z.tanh())
        return found

    def capsules(self, maps: list[Tensor]) -> Tensor:
        n = len(maps[0])
        u = torch.cat([m.reshape(n, 64, 64) for m in maps], 1)
        if self.scoring == "convolution":
            conv = self.fgsm.attention_maps.reduce_channel.conv
            scores = [conv(m).sigmoid().reshape(n, 64) for m in maps]
        else:
            scores = [((m - m.mean(1, True)) ** 2).mean(1).reshape(n, 64) for m in maps]
        left = self.fgsm.fc(torch.cat(scores, 1)).sigmoid().reshape(n, 7, 5)
        rows = []
        for a in scores:
            s = left @ self.fgsm.fm(a).sigmoid().reshape(n, 5, 192)
            rows.append(s @ u / s.sum(-1, keepdim=True))
        return torch.cat(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [a * b for a, b in zip(self.stream("s0", x), self.stream("s1", x), strict=True)]
        maps[0] = nn.functional.avg_pool2d(maps[0], 2)
        votes = torch.einsum("jiod,nid->nijo", self.caps_layer.affine_w, self.capsules(maps[::-1]))
        logits = torch.zeros(len(x), 21, 3)
        for _ in range(2):
            v = squash((logits.softmax(2).unsqueeze(-1) * votes).sum(1))
            logits = logits + torch.einsum("nijo,njo->nij", votes, v)
        answer, width = torch.zeros(len(x), 3), torch.ones(len(x), 3)
        for k in range(3):
            stage = self.get_submodule(f"esp_s{k + 1}")
            shift = stage.shift_fc(v[:, k, :4]).tanh()
            width = width * 3 * (1 + stage.scale_fc(v[:, k, 4:8]).tanh())
            share = stage.pred_fc(v[:, k, 8:]).relu().reshape(-1, 3, 3)
            answer = answer + sum((i - 1 + shift) * share[:, :, i] for i in range(3)) / width
        return answer * torch.tensor([self.yaw, 99.0, 99.0])


def keras_fsanet(x: Tensor, w: dict[str, Tensor], scoring: str) -> Tensor:
    """The Keras original, from images ``[N, H, W, C]`` and weights by their names."""

    def conv(x: Tensor, kernel: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
        axes = (2, 3, 0, 1) if groups > 1 else (3, 2, 0, 1)
        y = nn.functional.conv2d(
            x.permute(0, 3, 1, 2), kernel.permute(axes), bias, padding="same", groups=groups
        )
        return y.permute(0, 2, 3, 1)

    def pool(x: Tensor, name: str) -> Tensor:
        f = nn.functional.avg_pool2d if name == "x" else nn.functional.max_pool2d
        return f(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    maps: dict[str, list[Tensor]] = {}
    for name, first, act in (("x", 1, torch.relu), ("s", 8, torch.tanh)):
        y, maps[name] = x, []
        for k in range(7):
            p, q = (
                f"ssr_G_model/separable_conv2d_{first + k}",
                f"ssr_G_model/batch_normalization_{first + k}",
            )
            y = conv(y, w[f"{p}/depthwise_kernel"], None, y.shape[-1])
            y = conv(y, w[f"{p}/pointwise_kernel"], w[f"{p}/bias"])
            y = (y - w[f"{q}/moving_mean"]) / (w[f"{q}/moving_variance"] + 1e-3).sqrt()
            y = act(y * w[f"{q}/gamma"] + w[f"{q}/beta"])
            y = pool(y, name) if k in (0, 2, 4) else y
            if k in (2, 4, 6):
                # Numbered as they are made: the last stage's first, and of each stage the second stream's.
                at = {2: 5, 4: 3, 6: 1}[k] + (name == "x")
                c = f"ssr_G_model/conv2d_{at}"
                maps[name].append(act(conv(y, w[f"{c}/kernel"], w[f"{c}/bias"])))
    stages = [a * b for a, b in zip(maps["x"], maps["s"], strict=True)]
    stages[0] = pool(stages[0], "x")
    stages = stages[::-1]
    n = len(x)
    u = torch.cat([s.reshape(n, -1, 64) for s in stages], 1)
    if scoring != "none":
        if scoring == "convolution":
            c = "ssr_S_model/conv2d_7"
            scores = [
                conv(s, w[f"{c}/kernel"], w[f"{c}/bias"]).sigmoid().reshape(n, -1) for s in stages
            ]
        else:
            scores = [s.var(-1, correction=0).reshape(n, -1) for s in stages]
        left = dense(torch.cat(scores, 1), "ssr_S_model/dense_2").sigmoid().reshape(n, -1, 5)
        mixed = []
        for s in scores:
            m = left @ dense(s, "ssr_S_model/dense_1").sigmoid().reshape(n, 5, -1)
            mixed.append((m @ u) / m.sum(-1, keepdim=True))
        u = torch.cat(mixed, 1)
    v = keras_stages(u, w)
    f, first = next(k.split("/")[0] for k in w if "ssr_F" in k), 1 if scoring == "none" else 3
    answer, width = v.new_zeros(n, 3), v.new_ones(n, 3)
    for k in range(3):
        delta = dense(v[:, k, :4], f"{f}/delta_s{k + 1}").tanh()
        local = dense(v[:, k, 4:8], f"{f}/local_delta_stage{k + 1}").tanh()
        share = dense(v[:, k, 8:], f"{f}/dense_{first + k}").relu().reshape(n, 3, 3)
        width = width * 3 * (1 + delta)
        answer = answer + sum((i - 1 + local) * share[:, :, i] for i in range(3)) / width
    return answer * 99


def keras_stages(u: Tensor, w: dict[str, Tensor]) -> Tensor:
    """What makes ``[N, 3, 16]`` of the primary capsules: routing, two linear maps, or NetVLAD."""
    if "ssr_Metric_model/mat_mul_layer_1/kernel_type1" in w:
        made = u @ w["ssr_Metric_model/mat_mul_layer_1/kernel_type1"]
        kernel = w["ssr_Metric_model/mat_mul_layer_2/kernel_type2"]
        return torch.einsum("nio,is->nso", made, kernel)
    if "ssr_Agg_model/net_vlad_1/kernel_W1" in w:
        w1, b1, w2, h1 = (
            w[f"ssr_Agg_model/net_vlad_1/kernel_{k}"] for k in ("W1", "B1", "W2", "H1")
        )
        a = (u @ w1 + b1).softmax(-1)
        apart = torch.einsum("nik,nikd->ndk", a, u.unsqueeze(2) - w2[0].T)
        apart = nn.functional.normalize(apart, dim=1).flatten(1)
        return (nn.functional.normalize(apart, dim=1) @ h1).reshape(-1, 3, 16)
    votes = torch.einsum("jiod,nid->nijo", w["ssr_Cap_model/caps/W"], u)
    logits = votes.new_zeros(votes.shape[:3])
    for _ in range(2):
        s = (logits.softmax(2).unsqueeze(-1) * votes).sum(1)
        square = (s * s).sum(-1, keepdim=True)
        v = square / (1 + square) / (square + 1e-7).sqrt() * s
        logits = logits + torch.einsum("nijo,njo->nij", votes, v)
    return v


def keras_weights(scoring: str, pooling: str = "") -> dict[str, Tensor]:
    """Random weights under the names and in the order of the author's files; ``pooling`` for capsules."""
    w: dict[str, Tensor] = {}
    for k in range(1, 15):
        a, b = WIDTHS[(k - 1) % 7], WIDTHS[(k - 1) % 7 + 1]
        p, q = f"ssr_G_model/separable_conv2d_{k}", f"ssr_G_model/batch_normalization_{k}"
        w[f"{p}/depthwise_kernel"] = torch.randn(3, 3, a, 1) / 3
        w[f"{p}/pointwise_kernel"] = torch.randn(1, 1, a, b) / a**0.5
        w[f"{p}/bias"], w[f"{q}/gamma"] = 0.1 * torch.randn(b), torch.rand(b) + 0.5
        w[f"{q}/beta"], w[f"{q}/moving_mean"] = 0.1 * torch.randn(b), 0.1 * torch.randn(b)
        w[f"{q}/moving_variance"] = torch.rand(b) + 0.5
    for k, width in enumerate((128, 128, 64, 64, 32, 32), start=1):
        w[f"ssr_G_model/conv2d_{k}/kernel"] = torch.randn(1, 1, width, 64) / width**0.5
        w[f"ssr_G_model/conv2d_{k}/bias"] = 0.1 * torch.randn(64)
    if scoring == "convolution":
        w["ssr_S_model/conv2d_7/kernel"] = torch.randn(1, 1, 64, 1) / 8
        w["ssr_S_model/conv2d_7/bias"] = torch.randn(1)
    if scoring != "none":
        w["ssr_S_model/dense_1/kernel"] = torch.randn(64, 960) / 8
        w["ssr_S_model/dense_1/bias"] = torch.randn(960)
        w["ssr_S_model/dense_2/kernel"] = torch.randn(192, 35) / 14
        w["ssr_S_model/dense_2/bias"] = torch.randn(35)
    children = 192 if scoring == "none" else 21
    if pooling == "metric":
        w["ssr_Metric_model/mat_mul_layer_1/kernel_type1"] = torch.randn(64, 16) / 8
        w["ssr_Metric_model/mat_mul_layer_2/kernel_type2"] = torch.randn(children, 3) / 4
    elif pooling == "netvlad":
        name = "ssr_Agg_model/net_vlad_1/kernel"
        w[f"{name}_W1"], w[f"{name}_B1"] = torch.randn(64, 3), torch.randn(3)
        w[f"{name}_W2"], w[f"{name}_H1"] = torch.randn(1, 64, 3), torch.randn(192, 48)
    else:
        w["ssr_Cap_model/caps/W"] = 0.3 * torch.randn(3, children, 16, 64)
    f, first = "ssr_F_model" if pooling else "ssr_F_Cap_model", 1 if scoring == "none" else 3
    for k in range(3):
        w[f"{f}/dense_{first + k}/kernel"], w[f"{f}/dense_{first + k}/bias"] = (
            torch.randn(8, 9),
            torch.randn(9),
        )
        for name in (f"delta_s{k + 1}", f"local_delta_stage{k + 1}"):
            w[f"{f}/{name}/kernel"], w[f"{f}/{name}/bias"] = torch.randn(4, 3), 0.3 * torch.randn(3)
    return w
