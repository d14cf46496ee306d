"""FSA-Net written plainly from its description, under the names of its authors' tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.families.networks import squash

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
